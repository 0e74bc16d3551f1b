"""Grading of a file of answers: JSON Lines in, the same lines with outcomes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import UserError
from ..files import atomic_text, json_lines
from .answers import MathGrader
from .extraction import EMPHASIS, extract
from .grader import OUTCOMES, UNREADABLE_GOLD, Item, Options, speaks_of_degrees
from .notation import is_list

BATCH = 512  # answers per step of the progress bar


def grade(file: Path, out: Path, grader: MathGrader, options: Options, strict: bool = False) -> dict[str, int]:
    """Write the lines of ``file``, in order and with all their fields, to ``out``; return the count of each status.

    Each line has `gold` and either `prediction` (an answer; if it has a box, the content of the last one) or
    `completion` (a response, from which the grader's protocol extracts the answer). It may have `problem`, which tells
    whether a degree sign may be added. Each line gets `correct` (bool) and `status` (an outcome or `unreadable_gold`)
    in place of fields of the same name. Raises UserError, naming file and line, if a line cannot be graded, and if
    ``strict`` for an unreadable gold answer.
    """
    rows = [*json_lines(file)]
    if not rows:
        raise UserError(f"{file}: is empty.")
    items = [_item(row, f"{file}, line {number}", grader.extraction, options) for number, row in rows]
    batches = (items[first : first + BATCH] for first in range(0, len(items), BATCH))
    statuses = (status for batch in batches for status in grader.compare(batch, strict))
    counts, lines = dict.fromkeys((*OUTCOMES, UNREADABLE_GOLD), 0), []
    for (_, row), status in zip(rows, tqdm(statuses, "answers graded", len(rows)), strict=True):
        counts[status] += 1
        lines.append(json.dumps(row | {"correct": status == "correct", "status": status}) + "\n")
    atomic_text(out, "".join(lines))
    return counts


def _item(row: dict[str, Any], place: str, protocol: str, options: Options) -> Item:
    """Gold answer and answer of a line; the answer is empty if there is none."""
    key = "completion" if row.get("prediction") is None and "completion" in row else "prediction"
    for name, kinds in (("gold", str | int | float), (key, str | int | float | None)):
        if name not in row or not isinstance(row[name], kinds) or isinstance(row[name], bool):
            raise UserError(f"{place}: {name!r} must be a text or a number; the keys are {', '.join(map(repr, row))}.")
    gold, text = str(row["gold"]), "" if row[key] is None else str(row[key])
    # A prediction already is an answer; protocols that search prose would shorten it.
    answer = extract(text, "boxed" if key == "prediction" else protocol, is_list(gold, options.list_answer))
    if answer is None and key == "prediction":
        answer = extract(text, "hashes") or extract(text, "answer_tag") or EMPHASIS.sub(r"\2", text)
    return Item(gold, answer or "", replace(options, degrees=speaks_of_degrees(str(row.get("problem")))), place)
