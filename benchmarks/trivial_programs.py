"""Which problems of the published coding sets a program solves that is one trivial line.

Twenty programs for each problem, graded as responses of a model are: a constant whatever the arguments, an argument or
one call on it, an exception.

    policygrain data fetch humaneval humaneval_plus mbpp_plus --root FOLDER
    python benchmarks/trivial_programs.py FOLDER [--out results/benchmarks/trivial_programs.json]
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from policygrain.files import atomic_json
from policygrain.grading import CodeGrader, Options
from policygrain.grading.problem_tests import CONSTANTS
from policygrain.progress import Progress
from policygrain.provenance import commit, versions
from policygrain.sandbox import isolation
from policygrain.tasks.sources import load

SETS = ("humaneval", "humaneval_plus", "mbpp_plus")
ARGUMENTS = (
    "arguments[0]",
    "arguments[-1]",
    "arguments",
    "sorted(arguments[0])",
    "len(arguments[0])",
    "list(arguments[0])",
    "str(arguments[0])",
)
PROGRAMS = (*(f"return {value}" for value in (*CONSTANTS, *ARGUMENTS)), "raise StopIteration")


def passing(name: str, root: Path, grader: CodeGrader) -> dict[str, Any]:
    """How many problems a set has, and for each program the ids of those that it passes."""
    problems = load(name, root)
    options, ids = [Options.of(p) for p in problems], [p.id for p in problems]
    found: dict[str, list[str]] = {}
    for line in Progress(PROGRAMS, name, len(PROGRAMS)):
        programs = [f"def {p.entry_point}(*arguments, **keywords):\n    {line}\n" for p in problems]
        outcomes = grader.grade([""] * len(problems), programs, options, ids)
        found[line] = [i for i, outcome in zip(ids, outcomes, strict=True) if outcome == "correct"]
    return {"problems": len(problems), "passing": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path, metavar="FOLDER", help="of the problem sets")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()

    with CodeGrader() as grader:
        sets = {name: passing(name, arguments.root, grader) for name in SETS}
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": commit(),
        "isolation": isolation(),
        "sets": sets,
    }
    for name, found in sets.items():
        for line, ids in found["passing"].items():
            print(f"{name}: {line}: {len(ids)} of {found['problems']} {' '.join(ids)}")
    if arguments.out:
        atomic_json(arguments.out, report)


if __name__ == "__main__":
    main()
