"""Commands without a study: public problem sets, evaluation of any model, grading of a file of answers."""

from __future__ import annotations

import math
import os
from argparse import BooleanOptionalAction, Namespace

from .command import actions, command, flag, option, path

ROOT = path("--root", "folder of problem sets (default: POLICYGRAIN_DATA, else the working directory)")


@command(ROOT)
def _list(arguments: Namespace) -> None:
    """List the registered sets, how they are sampled, their sources, and which of them are in the folder."""
    from ..data.sets import SETS, data_root, find_file
    from ..text import columns

    root = data_root(arguments.root)
    rows = []
    for of in (SETS[name] for name in sorted(SETS)):
        sampling = "training" if of.n is None else f"{of.n} at {of.temperature:g}" if of.temperature else "greedy"
        owner, name, commit, _ = of.github.split("/", 3)
        source = f"github.com/{owner}/{name} at {commit:.12}"
        rows.append((of.name, str(of.count), sampling, "yes" if find_file(of, root) else "no", of.files[0], source))
    print("\n".join(columns(rows, ("set", "problems", "responses", "present", "file", "source"), "lrl")))


@command(ROOT, option("names", "sets (default: all)", nargs="*", metavar="NAME"))
def _fetch(arguments: Namespace) -> None:
    """Download, verify and convert sets.

    Sets that are in the folder and correct are skipped.
    """
    from ..data.fetch import fetch
    from ..data.sets import ROOT_VARIABLE, SETS, data_root, find_set
    from ..errors import UserError

    if arguments.root is None and ROOT_VARIABLE not in os.environ:
        raise UserError(f"data fetch: name the folder to download into: --root FOLDER, or {ROOT_VARIABLE}.")
    failed: list[str] = []
    for chosen in map(find_set, arguments.names or sorted(SETS)):
        try:
            print(f"{chosen.name}: {fetch(chosen, data_root(arguments.root))}", flush=True)
        except UserError as error:
            failed.append(str(error))
    if failed:
        raise UserError("\n".join(failed))


@command(
    ROOT, option("names", "sets or .jsonl files (default: all sets that are in the folder)", nargs="*", metavar="NAME")
)
def _check(arguments: Namespace) -> None:
    """Check the files of sets, and the answers or tests of your own problems.

    Sets are compared with what is registered: number of problems, content, columns, ids, empty answers. In a .jsonl
    file of your own, answers must be readable as mathematics, and tests must call the function.
    """
    from ..data.golds import check_golds, notes_on
    from ..data.problem import read_problems
    from ..data.sets import SETS, check_file, data_root, find_file, find_set
    from ..errors import UserError
    from ..text import columns

    root, notes = data_root(arguments.root), []
    faults: dict[str, list[str]] = {}
    for name in arguments.names or [s.name for s in SETS.values() if find_file(s, root)]:
        try:
            faults[name] = [] if name.endswith(".jsonl") else check_file(find_set(name), root)
            if name.endswith(".jsonl"):
                check_golds([root / name], "math")
                notes += [f"{name}: {note}" for note in notes_on(read_problems(root / name))]
        except UserError as error:
            faults[name] = [str(error).rstrip(".")]
    if not faults:
        raise UserError(f"{root}: none of the registered sets is here. Known: {', '.join(sorted(SETS))}.")
    results = [(name, "WRONG" if found else "right") for name, found in faults.items()]
    print("\n".join(columns(results, ("set", "result"), "l")))
    for note in notes:
        print(f"note: {note}")
    if any(faults.values()):
        raise UserError("data check: " + "\n".join(f"{fault}." for found in faults.values() for fault in found))


@command(actions(_list, _fetch, _check))
def data(_: Namespace) -> None:
    """List, fetch and check public problem sets."""


@command(
    option("models", "folder or hub name, or NAME=MODEL", nargs="+", metavar="MODEL"),
    option("--benchmarks", "registered sets, families or .jsonl files, separated by commas", required=True),
    path("--out", "folder for the records", required=True),
    option("--samples", "responses per problem (default: as registered for the benchmark)", type=int),
    option("--temperature", "0: greedy (default: as registered for the benchmark)", type=float),
    option("--top-p", "nucleus sampling (default: as registered for the benchmark)", type=float),
    option("--max-tokens", "longest response (default: 4096)", type=int, default=4096),
    option("--size", "only the first problems of each benchmark", type=int),
    option("--engine", choices=["auto", "vllm", "transformers"], default="auto"),
    option("--grader", choices=["math", "numeric"], default="math"),
    option("--extraction", "of the answer: boxed, answer_line, hashes, answer_tag or qwen_math", default="boxed"),
    option("--prompt", "text with {problem} (default: asks for steps and a box)"),
    option("--chat", "use the chat template (default: if all models have one)", action=BooleanOptionalAction),
    option("--chat-template-kwargs", "JSON, such as '{\"enable_thinking\": false}'", default="{}", metavar="JSON"),
    option("--stop", "strings before which a response ends", nargs="+", default=(), metavar="TEXT"),
    option("--revision", "revision of the models on the hub"),
    path("--root", "folder of problem sets (default: POLICYGRAIN_DATA)"),
    option("--seed", "sampling seed (default: 7)", type=int, default=7),
)
def evaluate_model(arguments: Namespace) -> None:
    """Evaluate any model, without a study: a folder or a name of the Hugging Face hub, on named benchmarks.

    Records, protocol and samples are those of a study's evaluation, in OUT/runs/NAME/seed0/evaluation. The same command
    resumes; other models with the same --out are added to the table, OUT/leaderboard.md.
    """
    from ..data.golds import check_golds
    from ..data.sources import check_sources, prepare
    from ..evaluate.any_model import PROMPT, EvaluationOptions, claim, fetched, named, study_of
    from ..evaluate.evaluation import evaluate
    from ..evaluate.leaderboard import leaderboard
    from ..files import atomic_text
    from ..model.device import claim_gpu
    from ..model.loading import load_tokenizer
    from ..paths import StudyFolder
    from ..text import columns, markdown_table

    models = {name: fetched(model, arguments.revision) for name, model in named(arguments.models).items()}
    chat = arguments.chat
    if chat is None:
        chat = all(load_tokenizer(str(folder)).chat_template for folder in models.values())
    benchmarks = [name for name in arguments.benchmarks.split(",") if name]
    values = {name: getattr(arguments, name) for name in EvaluationOptions._fields}
    options = EvaluationOptions(
        **{**values, "benchmarks": benchmarks, "prompt": arguments.prompt or PROMPT, "chat": chat}
    )
    results = StudyFolder(arguments.out)
    study = study_of(options, "evaluation", str(next(iter(models.values()))))
    check_sources(study)
    claim(results, study)
    claim_gpu()
    prepare(study, results.data)
    check_golds([results.data.benchmark(b.name) for b in study.evaluation.benchmarks], study.grader)
    evaluate(study, {f"{name}/seed0": folder for name, folder in models.items()}, results.data, results)
    header, rows = leaderboard(results)
    atomic_text(arguments.out / "leaderboard.md", markdown_table(header, rows, "llrrlr"))
    print(
        "In %, with 95% intervals over problems; n responses per problem.\n", *columns(rows, header, "llrrlr"), sep="\n"
    )


@command(
    path("file", "lines with `gold`, `prediction` or `completion`, and perhaps `problem`", metavar="FILE.jsonl"),
    path("--out", "JSON Lines file: the same lines with `correct` and `status`", required=True),
    option("--workers", "processes (default: one per processor)", type=int),
    option("--seconds", "processor time limit per answer (default: as in evaluations)", type=float),
    option("--relative-tolerance", "for numbers, as a share of the gold answer", type=float),
    option("--extraction", "from completions, as for evaluate-model (default: boxed)", default="boxed"),
    flag("--strict", "end with an error if a gold answer cannot be read"),
    flag("--list-answer", "gold answers are lists in any order"),
)
def grade(arguments: Namespace) -> None:
    """Grade a file of answers.

    A `prediction` is compared with the gold answer as it stands; from a `completion` the answer is extracted first.
    """
    from ..errors import UserError
    from ..files import check_out
    from ..grading import MathGrader, Options
    from ..grading.grade_file import grade
    from ..grading.math import TIME_LIMIT

    for name, least in (("workers", 1), ("seconds", 0.001), ("relative_tolerance", 0)):
        value = getattr(arguments, name)
        if value is not None and not least <= value < math.inf:
            raise UserError(f"--{name.replace('_', '-')} {value:g}: expected a number of at least {least}.")
    check_out(arguments.out)
    options = Options(relative_tolerance=arguments.relative_tolerance, list_answer=arguments.list_answer)
    with MathGrader(arguments.workers, arguments.seconds or TIME_LIMIT, extraction=arguments.extraction) as grader:
        counts = grade(arguments.file, arguments.out, grader, options, arguments.strict)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
