"""The command that lists, fetches, checks and compares public problem sets."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .declare import JSON, actions, command, option, path

if TYPE_CHECKING:
    from ..tasks.problem import Problem
    from ..tasks.registry import Dataset

ROOT = path("--root", "folder of problem sets (default: POLICYGRAIN_DATA, else the working directory)")


@command(ROOT, JSON)
def _list(arguments: Namespace) -> None:
    """List the registered sets, their versions and sources, and which of them are in the folder."""
    from ..tasks.registry import dataset, names
    from ..tasks.set_files import data_root, find
    from ..text import columns

    sets = [dataset(name) for name in names()]
    if arguments.json:
        print(json.dumps({d.name: d.model_dump(exclude={"name"}) for d in sets}, indent=1, ensure_ascii=False))
        return
    root = data_root(arguments.root)
    rows = [
        (d.name, d.role, str(d.version), str(d.count), "yes" if find(d, root) else "no", d.file, _source(d))
        for d in sets
    ]
    print("\n".join(columns(rows, ("set", "role", "version", "problems", "there", "file", "source"), "llrrl")))


def _source(d: Dataset) -> str:
    """Short description of the source that a set is downloaded from."""
    from ..tasks.registry import GitHome, HubHome

    if isinstance(d.home, GitHome):
        return f"github.com/{d.home.repository} at {d.home.commit[:12]}"
    if isinstance(d.home, HubHome):
        return f"huggingface.co/datasets/{d.home.dataset} at {d.home.revision[:12]}"
    return "none known: provide the file"


@command(ROOT, option("names", "sets (default: all that can be downloaded)", nargs="*", metavar="NAME"))
def _fetch(arguments: Namespace) -> None:
    """Download, verify and convert sets.

    Sets that are there and correct are skipped.
    """
    from ..errors import UserError
    from ..tasks.fetch import fetch
    from ..tasks.registry import dataset, names
    from ..tasks.set_files import ROOT_VARIABLE, data_root

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

    Sets are compared with the registry: number of problems, content, columns, ids, empty answers. Of a .jsonl file of
    your own: whether its answers can be read as mathematics, or tests test something.
    """
    from ..errors import UserError
    from ..tasks.golds import check_golds
    from ..tasks.registry import dataset, names
    from ..tasks.set_files import check, data_root, find
    from ..text import columns

    root = data_root(arguments.root)
    files = [name for name in arguments.names if name.endswith(".jsonl")]
    chosen = [dataset(name) for name in arguments.names or names() if name not in files]
    if not arguments.names:
        chosen = [d for d in chosen if find(d, root)]
        if not chosen:
            raise UserError(f"{root}: none of the registered sets is here. Known: {', '.join(names())}.")
    faults = {d.name: check(d, root) for d in chosen}
    for name in files:
        faults[name] = []
        try:
            check_golds([root / name], "math")
        except UserError as error:
            faults[name].append(str(error).rstrip("."))
    print(
        "\n".join(columns([(n, "WRONG" if found else "right") for n, found in faults.items()], ("set", "result"), "l"))
    )
    if any(faults.values()):
        raise UserError("data check: " + "\n".join(f"{fault}." for found in faults.values() for fault in found))


@command(
    ROOT,
    option("set", "a registered set or a .jsonl file", metavar="SET"),
    path("samples", "its file in an evaluation's folder", nargs="+", metavar="SAMPLES"),
    option("--least", "smallest solve rate (default: more than 0)", type=float),
    option("--most", "largest solve rate (default: less than 1)", type=float),
    path("--out", ".jsonl file for a study's data.train", required=True),
)
def _select(arguments: Namespace) -> None:
    """Write the problems that a model solves sometimes but not always, as its evaluated samples say."""
    from ..evaluate.selection import select, solve_rates
    from ..results.reader import samples
    from ..tasks.problem import write_problems
    from ..tasks.set_files import data_root

    problems = _problems(arguments.set, data_root(arguments.root), "data select")
    rates = solve_rates(sample for path in arguments.samples for sample in samples(path))
    selected = select(problems, rates, arguments.least, arguments.most)
    write_problems(arguments.out, selected)
    rate = sum(rates[p.id, p.problem] for p in selected) / len(selected)
    print(f"{arguments.out}: {len(selected)} of {len(problems)} problems, with a mean solve rate of {rate:.1%}")


def _problems(source: str, root: Path, where: str) -> list[Problem]:
    """The problems of a registered set or of a file in ``root``."""
    from ..tasks.problem import read_problems
    from ..tasks.registry import dataset, names
    from ..tasks.set_files import load, require

    if source in names():
        return load(dataset(source), require(dataset(source), root, where))
    if not source.endswith(".jsonl"):
        dataset(source)  # raises UserError with a suggestion
    return read_problems(root / source)


@command(
    ROOT,
    option("train", "a registered set or a .jsonl file", metavar="TRAIN"),
    option("benchmarks", "likewise", nargs="+", metavar="BENCHMARK"),
    path("--out", "JSON file (default: overlaps.json)", default=Path("overlaps.json")),
)
def _overlaps(arguments: Namespace) -> None:
    """Print and write which benchmark problems are among the training prompts, word for word or nearly so."""
    from ..files import atomic_json
    from ..tasks.contamination import TrainingIndex, as_data
    from ..tasks.set_files import data_root
    from ..text import columns

    root, where = data_root(arguments.root), "data overlaps"
    index = TrainingIndex(_problems(arguments.train, root, where))
    overlaps, rows = {}, []
    for name in arguments.benchmarks:
        benchmark = _problems(name, root, where)
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
