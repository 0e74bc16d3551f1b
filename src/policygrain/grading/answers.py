"""Graders of answers: ``numeric`` compares numbers, ``math`` mathematical expressions; grading of files of answers."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import UserError
from ..files import atomic_text, json_lines
from ..text import shortened
from .extraction import EMPHASIS, boxed, check_protocol, extract
from .grader import OUTCOMES, UNREADABLE_GOLD, Grader, Item, Options, Outcome, speaks_of_degrees
from .notation import MAX_DEPTH, OPTIONAL_SPACES, compact, depth, is_list, parse_number, same_number
from .workers import Pool, Task

MAX_LENGTH = 2_000  # characters of an answer that is read; the longest gold answer of the registered sets has 210
TIME_LIMIT = 3.0  # s of processor time per answer; the slowest gold answer of the registered sets takes 0.6 to 1.1
BATCH = 512  # answers of a file per step of the progress bar
_PLAIN = re.compile(r"[-+]? *\d[\d,./ ]*")  # no LaTeX, which is for the grader `math`


class NumericGrader(Grader):
    """Compares the extracted answer with the gold answer as numbers, or as text if the gold answer is not a number."""

    def __init__(self, extraction: str = "boxed") -> None:
        self.extraction = check_protocol(extraction)
        self.name = "numeric-2" + ("" if extraction == "boxed" else f", {extraction}")

    def grade(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response. UserError if options ask for more than equality."""
        for item in items:
            if not item.options.exact:
                raise UserError(f"{item.name}: tolerances and lists of answers need `grader: math` in the study.")
        return [self._grade(item.gold, item.text) for item in items]

    def _grade(self, gold: str, response: str) -> Outcome:
        answer = extract(response, self.extraction)
        if answer is None:
            return "unparsable"
        expected, actual = _number(gold), _number(answer)
        if expected is None:
            return "correct" if "".join(gold.split()) == "".join(answer.split()) else "incorrect"
        if actual is None:
            # `1,2` and `1 2` are two numbers: readable, but not the one that was asked for.
            joined = _number(answer.replace(",", "").replace(" ", ""))
            return "unparsable" if joined is None else "incorrect"
        return "correct" if actual == expected else "incorrect"


def _number(text: str) -> Fraction | None:
    text = text.strip().strip("$").strip(" ")
    return parse_number(OPTIONAL_SPACES.sub("", text).removesuffix(".")) if _PLAIN.fullmatch(text) else None


class MathGrader(Grader):
    """Compares mathematical expressions; an answer has ``seconds`` of processor time and ``memory`` bytes."""

    def __init__(
        self, workers: int | None = None, seconds: float = TIME_LIMIT, memory: int = 2**30, extraction: str = "boxed"
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError("grader 'math': the package math-verify is missing; install it or use 'numeric'.")
        self.extraction = check_protocol(extraction)
        protocol = "" if extraction == "boxed" else f", {extraction}"
        self.name = f"math-7 (math-verify {version('math-verify')}, {seconds:g} s{protocol})"
        self.pool = Pool(workers, seconds, memory)

    def grade(self, items: Sequence[Item]) -> list[Outcome]:
        lists = [is_list(item.gold, item.options.list_answer) for item in items]
        texts = [extract(item.text, self.extraction, is_a_list) for item, is_a_list in zip(items, lists, strict=True)]
        return self.compare([item._replace(text=text or "") for item, text in zip(items, texts, strict=True)])

    def compare(self, items: Sequence[Item], strict: bool = True) -> list[Any]:
        """One outcome per extracted answer; if the gold answer is unreadable that, or a UserError if ``strict``."""
        tasks = [(without_box(gold), without_box(answer), options) for gold, answer, options, _ in items]
        outcomes = {task: grade_directly(*task) for task in dict.fromkeys(tasks)}
        remaining = [task for task, outcome in outcomes.items() if outcome is None]
        outcomes |= zip(remaining, self.pool.run(remaining), strict=True)
        for item, task in zip(items, tasks, strict=True):
            if strict and outcomes[task] == UNREADABLE_GOLD:
                gold = shortened(repr(item.gold), 80)
                raise UserError(f"{item.name}: the gold answer {gold} cannot be read as mathematics; correct it.")
        return [outcomes[task] for task in tasks]

    def unreadable_golds(self, items: Sequence[Item]) -> list[Item]:
        """Items whose gold answers are not readable or not graded equal to themselves, those of texts left out."""
        answers = [item for item in items if not item.options.text]
        golds = {item: without_box(item.gold) for item in answers}
        tasks: dict[Item, Task] = {item: (gold, gold, item.options) for item, gold in golds.items()}
        # Not by grade_directly, which accepts equal texts without parsing them.
        parsed = [*{task for task in tasks.values() if not task[0].isdecimal() and not _too_large(task[0])}]
        outcomes = dict(zip(parsed, self.pool.run(parsed), strict=True))
        return [i for i, task in tasks.items() if _too_large(task[0]) or outcomes.get(task, "correct") != "correct"]


def without_box(answer: str) -> str:
    """An answer without its box, if it has one."""
    return boxed(answer, list_answer=True) or answer


def grade_directly(gold: str, answer: str, options: Options) -> str | None:
    """The outcome if it can be found without computer algebra, else None. Linear in the lengths."""
    if len(answer) > MAX_LENGTH or not answer.strip():
        return "unparsable"
    if options.text or _too_large(gold):
        same = "".join(gold.split()) == "".join(answer.split())
        return "correct" if same else "incorrect" if options.text else UNREADABLE_GOLD
    expected, actual = compact(gold), compact(answer)
    if expected == actual:
        return "correct"
    if depth(actual) > MAX_DEPTH:
        return "unparsable"
    if options.list_answer:
        return None
    equal = same_number(expected, actual, options)
    return None if equal is None else "correct" if equal else "incorrect"


def _too_large(gold: str) -> bool:
    return len(gold) > MAX_LENGTH or depth(gold) > MAX_DEPTH


def grade(file: Path, out: Path, grader: MathGrader, options: Options, strict: bool = False) -> dict[str, int]:
    """Write the lines of ``file`` to ``out`` with `correct` and `status` (docs/grading.md); counts by status."""
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
