"""Checks before training that a grader can read all gold answers, and that tests can fail."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import UserError
from ..grading import CodeGrader, Item, MathGrader
from ..text import shortened, some
from .problem import Problem, read_problems, with_repeats

_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?![A-Za-z{])")  # a word in an answer, not a command
TRIVIAL = ("return None", "return []", "return 0")  # programs that solve no problem
WHAT_CROSSES = (
    "Programs can import only Python's standard library, and exchange only copies of values of Python's own types "
    "with the tests (docs/coding.md)."
)


def check_golds(files: list[Path], grader_name: str) -> None:
    """UserError that names problems in ``files`` which cannot be graded.

    Their gold answers cannot be read by the grader, or their tests are wrong.
    """
    for path in files:
        problems = read_problems(path)
        _check_tests(path, [p for p in problems if p.options.tests])
        if grader_name == "math":
            items = [Item(p.answer, "", p.options, p.id) for p in problems if not p.options.tests]
            with MathGrader() as grader:
                bad = grader.unreadable_golds(items)
            if bad:
                named = some([f"{item.name} ({shortened(repr(item.gold), 80)})" for item in bad], 5)
                raise UserError(f"gold answers that cannot be read as mathematics: {named}. Correct or remove them.")


def notes_on(problems: list[Problem]) -> list[str]:
    """What to know about problems that can be graded: repeated ones, and answers that are sentences."""
    notes, different = [], len(with_repeats(problems))
    if different < len(problems):
        notes.append(
            f"{len(problems)} lines are {different} different problems. Repetitions count as further responses to a "
            "problem, not as problems of their own, in scores and intervals"
        )
    sentences = [p.id for p in problems if not p.options.tests and len(_WORD.findall(p.answer)) > 2]
    if sentences:
        notes.append(f"answers in words, which only the same words equal: {some(sentences, 5)}")
    return notes


def _check_tests(path: Path, problems: list[Problem]) -> None:
    """UserError that names problems whose solution fails their tests, or whose tests accept a constant result."""
    if not problems:
        return
    tried = [(p, "", p.answer) for p in problems if p.answer]
    tried += [(p, body, f"def {p.options.entry_point}(*_, **__): {body}") for p in problems for body in TRIVIAL]
    items = [Item("", program, p.options, f"{path}: {p.id}") for p, _, program in tried]
    with CodeGrader() as grader:
        outcomes = grader.grade(items)
    faults = []
    for (_, body, _), item, outcome in zip(tried, items, outcomes, strict=True):
        if body and outcome == "correct":
            faults.append(f"{item.name}: a program that is only `{body}` passes its tests. Add a test that it fails.")
        elif not body and outcome != "correct":
            faults.append(f"{item.name}: its solution is graded {outcome}. {WHAT_CROSSES}")
    if faults:
        rest = [f"{path}: {len(faults) - 5} more faults of tests."] if len(faults) > 5 else []
        raise UserError("\n".join(faults[:5] + rest))
