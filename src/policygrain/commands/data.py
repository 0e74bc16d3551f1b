"""Commands without a study: public problem sets, evaluation of any model, grading of a file of answers."""

from __future__ import annotations

import json
import math
import os
from argparse import BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .command import JSON, actions, command, flag, option, path

if TYPE_CHECKING:
    from ..data.registry import Dataset

ROOT = path("--root", "folder of problem sets (default: POLICYGRAIN_DATA, else the working directory)")


@command(ROOT, JSON)
def _list(arguments: Namespace) -> None:
    """List the registered sets, their versions and sources, and which of them are in the folder."""
    from ..data.registry import dataset, names
    from ..data.set_files import data_root, find
    from ..text import columns

    sets = [dataset(name) for name in names()]
    if arguments.json:
        print(json.dumps({d.name: d.model_dump(exclude={"name"}) for d in sets}, indent=1, ensure_ascii=False))
        return
    root = data_root(arguments.root)
    there = {d.name: "yes" if find(d, root) else "no" for d in sets}
    rows = [(d.name, d.role, str(d.version), str(d.count), there[d.name], d.file, _source(d)) for d in sets]
    print("\n".join(columns(rows, ("set", "role", "version", "problems", "present", "file", "source"), "llrrl")))


def _source(d: Dataset) -> str:
    """Short description of the source that a set is downloaded from."""
    from ..data.registry import GitHome, HubHome

    if isinstance(d.home, GitHome):
        return f"github.com/{d.home.repository} at {d.home.commit[:12]}"
    if isinstance(d.home, HubHome):
        return f"huggingface.co/datasets/{d.home.dataset} at {d.home.revision[:12]}"
    return "none known: provide the file"


@command(ROOT, option("names", "sets (default: all that can be downloaded)", nargs="*", metavar="NAME"))
def _fetch(arguments: Namespace) -> None:
    """Download, verify and convert sets.

    Sets that are in the folder and correct are skipped.
    """
    from ..data.fetch import fetch
    from ..data.registry import dataset, names
    from ..data.set_files import ROOT_VARIABLE, data_root
    from ..errors import UserError

    if arguments.root is None and ROOT_VARIABLE not in os.environ:
        raise UserError(f"data fetch: name the folder to download into: --root FOLDER, or {ROOT_VARIABLE}.")
    root = data_root(arguments.root)
    failed: list[str] = []
    for d in map(dataset, arguments.names or names()):
        if d.home is None and not arguments.names:
            continue
        try:
            print(f"{d.name}: {fetch(d, root)}", flush=True)
        except UserError as error:
            failed.append(str(error))
    if failed:
        raise UserError("\n".join(failed))


@command(
    ROOT, option("names", "sets or .jsonl files (default: all sets that are in the folder)", nargs="*", metavar="NAME")
)
def _check(arguments: Namespace) -> None:
    """Check the files of sets, and the answers or tests of your own problems.

    Sets are compared with the registry: number of problems, content, columns, ids, empty answers. In a .jsonl file of
    your own, answers must be readable as mathematics, and tests must call the function.
    """
    from ..data.golds import check_golds, notes_on
    from ..data.problem import read_problems
    from ..data.registry import dataset, names
    from ..data.set_files import check, data_root, find
    from ..errors import UserError
    from ..text import columns

    root = data_root(arguments.root)
    files = [name for name in arguments.names if name.endswith(".jsonl")]
    chosen = [dataset(name) for name in arguments.names or names() if name not in files]
    if not arguments.names:
        chosen = [d for d in chosen if find(d, root)]
        if not chosen:
            raise UserError(f"{root}: none of the registered sets is here. Known: {', '.join(names())}.")
    faults = {d.name: check(d, root) for d in chosen}
    notes = []
    for name in files:
        faults[name] = []
        try:
            check_golds([root / name], "math")
            notes += [f"{name}: {note}" for note in notes_on(read_problems(root / name))]
        except UserError as error:
            faults[name].append(str(error).rstrip("."))
    print(
        "\n".join(columns([(n, "WRONG" if found else "right") for n, found in faults.items()], ("set", "result"), "l"))
    )
    for note in notes:
        print(f"note: {note}")
    if any(faults.values()):
        raise UserError("data check: " + "\n".join(f"{fault}." for found in faults.values() for fault in found))


@command(
    ROOT,
    option("set", "a registered set or a .jsonl file", metavar="SET"),
    path("samples", "evaluation/samples.parquet of models evaluated on it", nargs="+", metavar="SAMPLES"),
    option("--least", "smallest solve rate (default: more than 0)", type=float),
    option("--most", "largest solve rate (default: less than 1)", type=float),
    path("--out", ".jsonl file for a study's data.train", required=True),
)
def _select(arguments: Namespace) -> None:
    """Write the problems that a model solves sometimes but not always, according to its evaluated samples."""
    import pandas as pd

    from ..data.problem import write_problems
    from ..data.sources import load
    from ..evaluate.selection import select, solve_rates
    from ..files import check_out
    from ..results import samples

    check_out(arguments.out)
    problems = load(arguments.set, arguments.root)
    rates = solve_rates(pd.concat([samples(path) for path in arguments.samples]))
    selected = select(problems, rates, arguments.least, arguments.most)
    write_problems(arguments.out, selected)
    rate = sum(rates[p.id, p.problem] for p in selected) / len(selected)
    print(f"{arguments.out}: {len(selected)} of {len(problems)} problems, with a mean solve rate of {rate:.1%}")


@command(
    ROOT,
    option("train", "a registered set or a .jsonl file", metavar="TRAIN"),
    option("benchmarks", "registered sets or .jsonl files", nargs="+", metavar="BENCHMARK"),
    path("--out", "JSON file (default: overlaps.json)", default=Path("overlaps.json")),
)
def _overlaps(arguments: Namespace) -> None:
    """Print and write which benchmark problems are among the training prompts, word for word or nearly so."""
    from ..data.contamination import TrainingIndex, as_data
    from ..data.sources import load
    from ..files import atomic_json, check_out
    from ..text import columns

    check_out(arguments.out)
    index = TrainingIndex(load(arguments.train, arguments.root))
    overlaps, rows = {}, []
    for name in arguments.benchmarks:
        benchmark = load(name, arguments.root)
        pairs = overlaps[name] = index.overlaps(benchmark)
        hit = {p.benchmark for p in pairs}
        exact = {p.benchmark for p in pairs if p.kind == "exact"}
        rows.append(
            (name, str(len(benchmark)), str(len(exact)), str(len(hit - exact)), f"{len(hit) / len(benchmark):.1%}")
        )
    print("\n".join(columns(rows, ("benchmark", "problems", "exact", "near", "share"), "lr")))
    atomic_json(arguments.out, {"training": arguments.train, "overlaps": as_data(overlaps)})
    print(f"Pairs: {arguments.out}")


@command(actions(_list, _fetch, _check, _select, _overlaps))
def data(_: Namespace) -> None:
    """List, fetch, check and compare public problem sets."""


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
