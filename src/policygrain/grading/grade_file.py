"""Grading a file of answers: JSON Lines in, the same lines with verdicts out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_text
from ..progress import Progress
from .math import MathGrader
from .numbers import Options
from .outcome import OUTCOMES, Outcome, boxed, joined_boxes

BATCH = 512  # answers between two steps of the progress bar


def grade(file: Path, out: Path, grader: MathGrader, options: Options) -> dict[Outcome, int]:
    """Write the lines of ``file``, in order and with all their fields, to ``out``; return how many have which status.

    Each line has `gold` and either `prediction` (an answer; if it has boxes, what the last one holds) or `completion`
    (a response; an answer is only what its last box holds). `status` is the outcome, `verdict` whether it is `correct`;
    if a line has such fields already, they are replaced. A bad line is a UserError that names file and line.
    """
    rows = _read(file)
    tasks = [_task(row, f"{file}, line {number}", options) for number, row in rows]
    where = [f"{file}, line {number}" for number, _ in rows]
    counts = dict.fromkeys(OUTCOMES, 0)
    lines = []
    outcomes = _outcomes(tasks, where, grader, options)
    for (_, row), outcome in zip(rows, Progress(outcomes, "answers graded", len(rows)), strict=True):
        counts[outcome] += 1
        lines.append(_line(row | {"verdict": outcome == "correct", "status": outcome}))
    atomic_text(out, "".join(lines))
    return counts


def _outcomes(
    tasks: list[tuple[str, str | None]], where: list[str], grader: MathGrader, options: Options
) -> Iterator[Outcome]:
    for first in range(0, len(tasks), BATCH):
        part = slice(first, first + BATCH)
        golds, answers = zip(*tasks[part], strict=True)
        yield from grader.compare(golds, answers, options, where[part])


def _read(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of the file with their line numbers; empty lines are left out."""
    rows = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{file}, line {number}: not JSON ({error}).") from error
            if not isinstance(row, dict):
                raise UserError(f"{file}, line {number}: expected a JSON object, got {type(row).__name__}.")
            rows.append((number, row))
    return rows


def _task(row: dict[str, Any], where: str, options: Options) -> tuple[str, str | None]:
    """Gold answer and answer of a line."""
    gold = row.get("gold")
    if not isinstance(gold, str | int | float) or isinstance(gold, bool) or not str(gold).strip():
        raise UserError(f"{where}: 'gold' must be a text or a number; the keys are {', '.join(map(repr, row))}.")
    key = next((key for key in ("prediction", "completion") if row.get(key) is not None), None)
    if key is None:
        if "prediction" in row or "completion" in row:
            return str(gold), None
        raise UserError(f"{where}: no 'prediction' or 'completion'; the keys are {', '.join(map(repr, row))}.")
    if not isinstance(row[key], str | int | float) or isinstance(row[key], bool):
        raise UserError(f"{where}: {key!r} must be a text, a number or null, not {type(row[key]).__name__}.")
    text = str(row[key])
    answer = (joined_boxes if options.list_answer else boxed)(text)
    return str(gold), text if answer is None and key == "prediction" else answer


def _line(row: dict[str, Any]) -> str:
    line = json.dumps(row, ensure_ascii=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError:  # half a character, which JSON can write but UTF-8 cannot
        line = json.dumps(row) + "\n"
    return line
