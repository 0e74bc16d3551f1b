"""The math grader: answers are compared as mathematical expressions, by math-verify in worker processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from ..errors import UserError
from ..text import shortened, some
from .extraction import boxed, check_protocol, extract
from .grader import DEFAULT, UNREADABLE_GOLD, Grader, Item, Options, Outcome, items_of
from .notation import compact, is_list
from .numeric import agree, depth, parse_number
from .workers import Pool, Task

# A longer (in characters) or deeper nested answer is unparsable, a gold answer unreadable. The longest gold answer of
# the registered problem sets has 210 characters.
MAX_LENGTH = 2_000
MAX_DEPTH = 40
# Of processor time per answer. Reading the slowest gold answer of the registered problem sets takes 0.6 to 1.1 s.
TIME_LIMIT = 3.0


class MathGrader(Grader):
    """Compares the extracted answer with the gold answer as mathematical expressions.

    Outcomes: `correct` and `incorrect`; `unparsable`: no answer, or it cannot be read; `timeout`: it took more than
    ``seconds`` of processor time (or five times as long in wall-clock time); `error`: it took more than ``memory``
    bytes, or its worker died twice.
    """

    def __init__(
        self, workers: int | None = None, seconds: float = TIME_LIMIT, memory: int = 2**30, extraction: str = "boxed"
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError("grader 'math': the package math-verify is missing; install it or use 'numeric'.")
        self.extraction = check_protocol(extraction)
        protocol = "" if extraction == "boxed" else f", {extraction}"
        self.name = f"math-6 (math-verify {version('math-verify')}, {seconds:g} s{protocol})"
        self.pool = Pool(workers, seconds, memory)

    def grade_items(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response. UserError as ``compare_items``."""
        lists = [is_list(item.gold, item.options.list_answer) for item in items]
        texts = [extract(item.text, self.extraction, is_a_list) for item, is_a_list in zip(items, lists, strict=True)]
        return self.compare_items([item._replace(text=text or "") for item, text in zip(items, texts, strict=True)])

    def compare(
        self, golds: Sequence[str], answers: Sequence[str], options: Options | Sequence[Options] = DEFAULT
    ) -> list[Outcome]:
        """Like ``grade``, for extracted answers."""
        return self.compare_items(items_of(golds, answers, options))

    def compare_items(self, items: Sequence[Item], strict: bool = True) -> list[Any]:
        """One outcome per extracted answer, which is empty if there is none.

        UNREADABLE_GOLD if the gold answer cannot be read and the answer is not the same text, UserError if ``strict``.
        """
        tasks = [(without_box(gold), without_box(answer), options) for gold, answer, options, _ in items]
        outcomes = {task: grade_directly(*task) for task in dict.fromkeys(tasks)}
        remaining = [task for task, outcome in outcomes.items() if outcome is None]
        outcomes |= zip(remaining, self.pool.run(remaining), strict=True)
        for item, task in zip(items, tasks, strict=True):
            if strict and outcomes[task] == UNREADABLE_GOLD:
                gold = shortened(repr(item.gold), 80)
                raise UserError(f"{item.name}: the gold answer {gold} cannot be read as mathematics; correct it.")
        return [outcomes[task] for task in tasks]

    def check_golds(
        self, golds: Sequence[str], ids: Sequence[str], options: Options | Sequence[Options] = DEFAULT
    ) -> None:
        """UserError, which names them, for gold answers that are not readable or not graded equal to themselves."""
        if bad := self.unreadable_golds(golds, options):
            named = some([f"{ids[i]} ({shortened(repr(golds[i]), 80)})" for i in bad], 5)
            raise UserError(f"gold answers that cannot be read as mathematics: {named}. Correct or remove them.")

    def unreadable_golds(self, golds: Sequence[str], options: Options | Sequence[Options] = DEFAULT) -> list[int]:
        """Indices of gold answers that are not readable or not graded equal to themselves, those of texts left out."""
        golds = [without_box(gold) for gold in golds]
        tasks: dict[int, Task] = {i: item[:3] for i, item in enumerate(items_of(golds, golds, options))}
        tasks = {i: task for i, task in tasks.items() if not task[2].text}
        # Not by grade_directly, which accepts equal texts without parsing them.
        parsed = [*{task for task in tasks.values() if not task[0].isdecimal() and not _too_large(task[0])}]
        outcomes = dict(zip(parsed, self.pool.run(parsed), strict=True))
        return [i for i, t in tasks.items() if _too_large(t[0]) or outcomes.get(t, "correct") != "correct"]


def without_box(answer: str) -> str:
    """An answer without its box, if it has one."""
    content = boxed(answer, list_answer=True)
    return answer if content is None else content


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
    a, b = parse_number(expected), parse_number(actual)
    return None if a is None or b is None else "correct" if agree(a, b, options) else "incorrect"


def _too_large(gold: str) -> bool:
    return len(gold) > MAX_LENGTH or depth(gold) > MAX_DEPTH
