"""Whether a grader can read the gold answers of prepared problems."""

from __future__ import annotations

from pathlib import Path

from ..grading.math import MathGrader
from ..grading.numbers import Options
from .problem import Problem, read_problems


def check_golds(files: list[Path], grader_name: str) -> None:
    """UserError, before anything is spent, that names gold answers in ``files`` which the grader cannot read."""
    if grader_name != "math":
        return
    with MathGrader() as grader:
        for path in files:
            by_options: dict[Options, list[Problem]] = {}
            for problem in read_problems(path):
                if problem.tests:
                    continue  # its answer is a program, which is run and not compared
                by_options.setdefault(Options.of(problem), []).append(problem)
            for options, problems in by_options.items():
                grader.check_golds([p.answer for p in problems], [p.id for p in problems], options)
