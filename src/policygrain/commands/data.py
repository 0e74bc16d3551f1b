"""`policygrain data …`: the registry's sets, listed, fetched, checked, compared."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_json
from ..tasks.check import ROOT_VARIABLE, Report, check, data_root, find, load, require
from ..tasks.registry import Dataset, GitHome, HubHome, dataset, names

ROOT_HELP = f"folder of problem sets (default: {ROOT_VARIABLE}, else here)"


def add_commands(commands: Any) -> None:
    """Add `data` and what it can do to the command line's ``commands``."""
    data = commands.add_parser("data", help="public problem sets: list, fetch, check, compare", description=__doc__)
    inner = data.add_subparsers(required=True, metavar="ACTION")

    added = inner.add_parser("list", help="what the registry knows", description=_list.__doc__)
    added.add_argument("--root", type=Path, default=None, help=ROOT_HELP)
    added.add_argument("--json", action="store_true", help="everything, as JSON")
    added.add_argument("--markdown", action="store_true", help="the documentation's page instead")
    added.set_defaults(command=_list)

    added = inner.add_parser("fetch", help="bring sets into a folder", description=_fetch.__doc__)
    added.add_argument("names", nargs="*", metavar="NAME", help="default: every set that has a home")
    added.add_argument("--root", type=Path, default=None, help=ROOT_HELP)
    added.set_defaults(command=_fetch)

    added = inner.add_parser("check", help="hold files against the registry", description=_check.__doc__)
    added.add_argument("names", nargs="*", metavar="NAME", help="default: every set that is there")
    added.add_argument("--root", type=Path, default=None, help=ROOT_HELP)
    added.set_defaults(command=_check)

    added = inner.add_parser(
        "overlaps", help="benchmark problems among training prompts", description=_overlaps.__doc__
    )
    added.add_argument("train", metavar="TRAIN", help="a registered set or a .jsonl file")
    added.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="likewise")
    added.add_argument("--root", type=Path, default=None, help=ROOT_HELP)
    added.add_argument("--out", type=Path, default=Path("overlaps.json"), help="JSON (default: overlaps.json)")
    added.set_defaults(command=_overlaps)


def _list(arguments: argparse.Namespace) -> None:
    """List the registered sets, their versions and homes, and which of them are in the folder."""
    if arguments.markdown:
        from ..tasks.documentation import markdown

        print(markdown(), end="")
        return
    sets = [dataset(name) for name in names()]
    if arguments.json:
        print(json.dumps({d.name: d.model_dump(exclude={"name"}) for d in sets}, indent=1, ensure_ascii=False))
        return
    root = data_root(arguments.root)
    rows = [
        (d.name, d.role, str(d.version), str(d.count), "yes" if find(d, root) else "no", d.file, home_of(d))
        for d in sets
    ]
    _table(("set", "role", "version", "problems", "there", "file", "home"), rows)


def home_of(d: Dataset) -> str:
    """Where a set lives, in a few words."""
    if isinstance(d.home, GitHome):
        return f"github.com/{d.home.repository} at {d.home.commit[:12]}"
    if isinstance(d.home, HubHome):
        return f"huggingface.co/datasets/{d.home.dataset} at {d.home.revision[:12]}"
    return "none known: bring the file"


def _fetch(arguments: argparse.Namespace) -> None:
    """Download, verify and convert sets. What is there and right is left alone; what was interrupted goes on."""
    from ..tasks.fetch import fetch

    if arguments.root is None and ROOT_VARIABLE not in os.environ:
        raise UserError(f"data fetch: say where to: --root FOLDER, or {ROOT_VARIABLE}.")
    root = data_root(arguments.root)
    chosen = [dataset(name) for name in arguments.names or names()]
    failed: list[str] = []
    for d in chosen:
        if d.home is None and not arguments.names:
            continue
        try:
            print(f"{d.name}: {fetch(d, root)}", flush=True)
        except UserError as error:
            failed.append(str(error))
    if failed:
        raise UserError("\n".join(failed))


def _check(arguments: argparse.Namespace) -> None:
    """Compare files with the registry: count, content, columns, ids, empty answers."""
    root = data_root(arguments.root)
    chosen = [dataset(name) for name in arguments.names or names()]
    if not arguments.names:
        chosen = [d for d in chosen if find(d, root)]
        if not chosen:
            raise UserError(f"{root}: none of the registered sets is here. Known: {', '.join(names())}.")
    reports = [check(d, root) for d in chosen]
    _table(("set", "problems", "content", "result"), [_verdict(r) for r in reports])
    faults = [fault for r in reports for fault in r.faults]
    if faults:
        raise UserError("data check: " + "\n".join(f"{fault}." for fault in faults))


COPIES = {
    "recorded": "the recorded file",
    "equal": "equal to the recorded one",
    "unknown": "no record to compare with",
    "other": "not what is recorded",
}


def _verdict(report: Report) -> tuple[str, ...]:
    count = str(report.count) if report.path else "–"
    return report.name, count, COPIES.get(report.copy, "–"), "WRONG" if report.faults else "right"


def _overlaps(arguments: argparse.Namespace) -> None:
    """Print and write which benchmark problems are among the training prompts, word for word or nearly so."""
    from ..tasks.contamination import TrainingIndex, as_data
    from ..tasks.problem import Problem, read_problems

    root = data_root(arguments.root)

    def problems(source: str) -> list[Problem]:
        if source in names():
            return load(dataset(source), require(dataset(source), root, "data overlaps"))
        if not source.endswith(".jsonl"):
            dataset(source)  # complains, with what was probably meant
        return read_problems(root / source)

    index = TrainingIndex(problems(arguments.train))
    found, rows = {}, []
    for name in arguments.benchmarks:
        benchmark = problems(name)
        pairs = found[name] = index.overlaps(benchmark)
        hit = {p.benchmark for p in pairs}
        exact = {p.benchmark for p in pairs if p.kind == "exact"}
        rows.append(
            (name, str(len(benchmark)), str(len(exact)), str(len(hit - exact)), f"{len(hit) / len(benchmark):.1%}")
        )
    _table(("benchmark", "problems", "exact", "near", "share"), rows)
    atomic_json(arguments.out, {"training": arguments.train, "overlaps": as_data(found)})
    print(f"Pairs: {arguments.out}")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
