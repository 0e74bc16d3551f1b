"""Grade a file of answers.

A `prediction` is compared with the gold answer as it stands; from a `completion` the answer is extracted first.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "file", type=Path, metavar="FILE.jsonl", help="lines with `gold` and `prediction` or `completion`"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON Lines file: the same lines with `correct` and `status`"
    )
    parser.add_argument("--workers", type=int, default=None, help="processes (default: one per processor)")
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time limit per answer (default: 1)")
    parser.add_argument(
        "--relative-tolerance", type=float, default=None, help="for numbers, as a share of the gold answer"
    )
    parser.add_argument(
        "--extraction", default="boxed", help="from completions: boxed, answer_line or qwen_math (default: boxed)"
    )
    parser.add_argument("--strict", action="store_true", help="end with an error if a gold answer cannot be read")
    parser.add_argument("--list-answer", action="store_true", help="gold answers are lists in any order")


def run(arguments: argparse.Namespace) -> None:
    """Grade the file and print how many answers had each status."""
    from ..grading import MathGrader, Options
    from ..grading.grade_file import grade

    options = Options(relative_tolerance=arguments.relative_tolerance, list_answer=arguments.list_answer)
    with MathGrader(arguments.workers, arguments.seconds, extraction=arguments.extraction) as grader:
        counts = grade(arguments.file, arguments.out, grader, options, arguments.strict)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
