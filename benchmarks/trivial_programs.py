"""Which problems of the published coding sets a program solves that is one trivial line.

Twenty programs for each problem: a constant whatever the arguments, an argument or one call on it, an exception. They
are run by the grader's own code, without a sandbox, because nobody else wrote them.

    policygrain data fetch humaneval humaneval_plus mbpp_plus --root FOLDER
    python benchmarks/trivial_programs.py FOLDER [--out results/benchmarks/trivial_programs.json]
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from common import parser_of, provenance, save
from policygrain.data.sources import load
from policygrain.grading import Options
from policygrain.grading.code import run_tests

SETS = ("humaneval", "humaneval_plus", "mbpp_plus")
CONSTANTS = ("None", "True", "False", "0", "1", "float('nan')", "''", "[]", "[[]]", "()", "{}", "set()")
ARGUMENTS = (
    "arguments[0]",
    "arguments[-1]",
    "arguments",
    "sorted(arguments[0])",
    "len(arguments[0])",
    "list(arguments[0])",
    "str(arguments[0])",
)
SECONDS = 10  # in which tests run one program
RAISES = "raise StopIteration"
PROGRAMS = (*(f"return {value}" for value in (*CONSTANTS, *ARGUMENTS)), RAISES)


def function(program: str) -> Callable[..., Any]:
    """What a program of one line does."""

    def call(*arguments: Any, **_: Any) -> Any:
        if program == RAISES:
            raise RuntimeError(RAISES)  # as it reaches tests
        return eval(program.removeprefix("return "), {"arguments": arguments})

    return call


def passed(options: Options) -> list[str]:
    """The programs that pass the tests of a problem."""
    found = []
    for program in PROGRAMS:
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # KeyboardInterrupt, which run_tests returns
        signal.alarm(SECONDS)
        if run_tests(options, function(program)) is None:
            found.append(program)
        signal.alarm(0)
    return found


def passing(name: str, root: Path) -> dict[str, Any]:
    """How many problems a set has, and for each program the ids of those that it passes."""
    problems = load(name, root)
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        each = list(tqdm(pool.imap(passed, (p.options for p in problems)), name, len(problems)))
    found = {line: [p.id for p, own in zip(problems, each, strict=True) if line in own] for line in PROGRAMS}
    return {"problems": len(problems), "passing": found}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("root", type=Path, metavar="FOLDER", help="of the problem sets")
    arguments = parser.parse_args()

    sets = {name: passing(name, arguments.root) for name in SETS}
    report: dict[str, Any] = {
        **provenance(),
        "sets": sets,
    }
    for name, found in sets.items():
        for line, ids in found["passing"].items():
            print(f"{name}: {line}: {len(ids)} of {found['problems']} {' '.join(ids)}")
    save(report, arguments.out)


if __name__ == "__main__":
    main()
