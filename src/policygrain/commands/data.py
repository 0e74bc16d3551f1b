"""Commands without a study: problem sets, evaluation of any model, grading of answers, a claim on logs of runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from ..errors import UserError
from ..files import atomic_text, check_out
from ..paths import StudyFolder
from ..text import columns, latex_table, markdown_table
from .app import Json, app, option

GROUP = "Without a study: models, data, and logs of any trainer"
Root = Annotated[Path | None, option("folder of problem sets (default: POLICYGRAIN_DATA, else the working directory)")]
Names = Annotated[list[str] | None, Argument(help="sets (default: all); check: or .jsonl files", metavar="NAME")]
Side = Annotated[
    list[str], option("logs of at least two runs: paths, globs, or PLACE::NAME for runs in one place", metavar="RUNS")
]

data = typer.Typer(no_args_is_help=True, help="List, fetch and check public problem sets.")
app.add_typer(data, name="data", rich_help_panel=GROUP)


@data.command("list")
def _list(root: Root = None) -> None:
    """List the registered sets, how they are sampled, their sources, and which of them are in the folder."""
    from ..data.sets import SETS, data_root

    rows = []
    for name, of in sorted(SETS.items()):
        sampling = "training" if of.n is None else f"{of.n} at {of.temperature:g}" if of.temperature else "greedy"
        owner, repository, commit, _ = of.github.split("/", 3)
        present = "yes" if (data_root(root) / of.file).is_file() else "no"
        source = f"github.com/{owner}/{repository} at {commit:.12}"
        rows.append((name, str(of.count), sampling, present, of.file, source))
    print("\n".join(columns(rows, ("set", "problems", "responses", "present", "file", "source"), "lrl")))


@data.command("fetch")
def _fetch(names: Names = None, root: Root = None) -> None:
    """Download, verify and convert sets, but those that are in the folder and correct."""
    from ..data.published import fetch
    from ..data.sets import ROOT_VARIABLE, SETS, data_root, find_set

    if root is None and ROOT_VARIABLE not in os.environ:
        raise UserError(f"data fetch: name the folder to download into: --root FOLDER, or {ROOT_VARIABLE}.")
    failed = []
    for chosen in map(find_set, names or sorted(SETS)):
        try:
            print(f"{chosen.name}: {fetch(chosen, data_root(root))}", flush=True)
        except UserError as error:
            failed.append(str(error))
    if failed:
        raise UserError("\n".join(failed))


@data.command("check")
def _check(names: Names = None, root: Root = None) -> None:
    """Compare sets in the folder with what is registered, and check your own problems (.jsonl).

    Their answers must be readable as mathematics, and tests must call the function.
    """
    from ..data.sets import SETS, data_root

    folder = data_root(root)
    names = names or [name for name, of in SETS.items() if (folder / of.file).is_file()]
    if not names:
        raise UserError(f"{folder}: none of the registered sets is here. Known: {', '.join(sorted(SETS))}.")
    wrong = []
    for name in names:
        faults = faults_of(name, folder)
        print(f"{name}: {'WRONG' if faults else 'right'}", flush=True)
        wrong += faults
    if wrong:
        raise UserError("data check: " + "\n".join(wrong))


def faults_of(name: str, root: Path) -> list[str]:
    """What is wrong with a set or a .jsonl file; notes on a file are printed."""
    from ..data.problem import read_problems, with_repeats
    from ..data.sets import check_file, find_set
    from ..data.sources import check_golds, check_ids, notes_on

    try:
        if not name.endswith(".jsonl"):
            return [f"{fault}." for fault in check_file(find_set(name), root)]
        check_golds([root / name], "math")
        problems = read_problems(root / name)
        check_ids(with_repeats(problems), name)
    except UserError as error:
        return [str(error)]
    for note in notes_on(problems):
        print(f"note: {name}: {note}")
    return []


@app.command(rich_help_panel=GROUP)
def evaluate_model(
    models: Annotated[list[str], Argument(help="folder or hub name, or NAME=MODEL", metavar="MODEL")],
    benchmarks: Annotated[str, option("registered sets, families or .jsonl files, separated by commas")],
    out: Annotated[Path, option("folder for the records")],
    samples: Annotated[int | None, option("responses per problem (default: as registered for the benchmark)")] = None,
    temperature: Annotated[float | None, option("0: greedy (default: as registered for the benchmark)")] = None,
    top_p: Annotated[float | None, option("nucleus sampling (default: as registered for the benchmark)")] = None,
    max_tokens: Annotated[int, option("longest response")] = 3072,
    size: Annotated[int | None, option("only the first problems of each benchmark")] = None,
    engine: Annotated[Literal["auto", "vllm", "transformers"], option("inference engine")] = "auto",
    grader: Annotated[Literal["math", "numeric"], option("grader of answers")] = "math",
    extraction: Annotated[str, option("of the answer: boxed, answer_line, hashes, answer_tag or qwen_math")] = "boxed",
    prompt: Annotated[str | None, option("text with {problem} (default: asks for steps and a box)")] = None,
    chat: Annotated[bool | None, option("use the chat template (default: if all have one)", "--chat/--no-chat")] = None,
    chat_template_kwargs: Annotated[
        Any, Option(help="such as '{\"enable_thinking\": false}'", metavar="JSON", parser=json.loads)
    ] = "{}",
    stop: Annotated[list[str] | None, option("strings before which a response ends", metavar="TEXT")] = None,
    revision: Annotated[str | None, option("revision of the models on the hub")] = None,
    root: Root = None,
    seed: Annotated[int, option("sampling seed")] = 7,
) -> None:
    """Evaluate any model, without a study: a folder or a name of the Hugging Face hub, on named benchmarks.

    Records, protocol and samples are those of a study's evaluation, in OUT/runs/NAME/seed0/evaluation. The same command
    resumes; other models with the same --out are added to the table, OUT/leaderboard.md.
    """
    given = {k: v for k, v in locals().items() if k not in ("models", "benchmarks", "out", "revision", "root")}
    from ..evaluate.any_model import asked, leaderboard, named, prepare
    from ..evaluate.evaluation import evaluate
    from ..hub import local_copy
    from ..model.device import claim_gpu
    from ..model.loading import load_tokenizer

    folders = {name: local_copy(model, revision) for name, model in named(models).items()}
    if given["chat"] is None:
        given["chat"] = all(load_tokenizer(str(folder)).chat_template for folder in folders.values())
    evaluation, results = asked([name for name in benchmarks.split(",") if name], **given), StudyFolder(out)
    prepare(results, evaluation, root)
    claim_gpu()
    evaluate(evaluation, {f"{name}/seed0": folder for name, folder in folders.items()}, results.data, results)
    header, rows = leaderboard(results)
    atomic_text(out / "leaderboard.md", markdown_table(header, rows, "lllr"))
    print("In %, with 95% intervals over problems; n responses per problem.\n")
    print("\n".join(columns(rows, header, "lllr")))


@app.command(rich_help_panel=GROUP)
def grade(
    file: Annotated[Path, Argument(help="lines with `gold`, `prediction` or `completion`, and perhaps `problem`")],
    out: Annotated[Path, option("JSON Lines file: the same lines with `correct` and `status`")],
    workers: Annotated[int | None, Option(min=1, help="processes (default: one per processor)")] = None,
    relative_tolerance: Annotated[float | None, Option(min=0, help="for numbers, as a share of the gold")] = None,
    extraction: Annotated[str, option("from completions, as for evaluate-model")] = "boxed",
    strict: Annotated[bool, option("end with an error if a gold answer cannot be read", "--strict")] = False,
    list_answer: Annotated[bool, option("gold answers are lists in any order", "--list-answer")] = False,
) -> None:
    """Grade a file of answers: a `prediction` as it stands, and what is extracted from a `completion`."""
    from ..grading import MathGrader, Options
    from ..grading.answers import grade

    check_out(out)
    options = Options(relative_tolerance=relative_tolerance, list_answer=list_answer)
    with MathGrader(workers, extraction=extraction) as grader:
        counts = grade(file, out, grader, options, strict)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))


@app.command(rich_help_panel=GROUP)
def claim(
    a: Side,
    b: Side,
    metric: Annotated[str, option("name of the metric in the logs", metavar="NAME")],
    margin: Annotated[float | None, Option(min=0, help="smallest difference that matters", metavar="X")] = None,
    claimed: Annotated[Literal["above", "below"], option("that a is above b, or below")] = "above",
    last: Annotated[int, Option(min=1, help="endpoint: the mean of the last K values", metavar="K")] = 1,
    auc: Annotated[bool, option("endpoint: the mean of the whole curve instead", "--auc")] = False,
    until: Annotated[float | None, option("leave out values of later steps", metavar="STEP")] = None,
    step: Annotated[str | None, option("the column of steps, where it has an unusual name", metavar="NAME")] = None,
    unpaired: Annotated[bool, option("do not pair runs by their seeds", "--unpaired")] = False,
    figure: Annotated[Path | None, option("draw the curves and the difference", metavar="FILE")] = None,
    table: Annotated[Literal["markdown", "latex"] | None, option("print a table of one row instead")] = None,
    fail_unless: Annotated[Literal["holds", "smaller"] | None, option("exit with 1 if the verdict differs")] = None,
    as_json: Json = False,
) -> None:
    """Decide whether one side of runs, of any trainer, is better than another.

    Reads logs of TRL, verl and prime-rl, CSV, JSON Lines, MLflow, TensorBoard and exports of Weights & Biases. Prints
    the difference with its interval, the verdict, and about how many more seeds would decide (docs/evaluate.md).
    """
    from ..analysis.run_claims import Endpoint, decide_runs
    from ..analysis.run_logs import read_runs
    from ..figures import SUFFIXES

    if figure is not None and figure.suffix not in SUFFIXES:
        raise UserError(f"--figure {figure}: a figure is one of {', '.join(SUFFIXES)}.")
    check_out(figure)
    if auc and last > 1:
        raise UserError("--last: --auc is another endpoint; leave one of them out.")
    if as_json and table is not None:
        raise UserError("--table: --json is another output; leave one of them out.")
    if fail_unless == "smaller" and margin is None:
        raise UserError("--fail-unless smaller: a difference is smaller than a margin; set --margin.")
    for name, number in (("margin", margin), ("until", until)):
        if number is not None and not math.isfinite(number):
            raise UserError(f"--{name}: {number} is not a finite number.")
    of_a, of_b, endpoint = read_runs(a, metric, step), read_runs(b, metric, step), Endpoint(last, auc, until)
    decided = decide_runs(of_a, of_b, metric, margin=margin, claimed=claimed, endpoint=endpoint, pair=not unpaired)
    if as_json:
        print(json.dumps(decided.data(), indent=1, ensure_ascii=False))
    elif table is not None:
        print((markdown_table if table == "markdown" else latex_table)(*decided.table()), end="")
    else:
        print(decided.text())
    if figure is not None:
        from ..figures.catalogue import draw_claim

        draw_claim(decided, of_a, of_b, figure)
    if fail_unless is not None and fail_unless not in decided.verdict:
        raise typer.Exit(1)
