"""Answers compared as mathematics, by math-verify in worker processes."""

from __future__ import annotations

import importlib.util
import itertools
import os
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Self, cast

from ..errors import UserError
from .messages import UNPARSABLE_GOLD
from .numbers import PLAIN, Options, agree, number, other_base, tidy
from .outcome import Outcome, boxed, joined_boxes
from .pool import Pool, Task

# An answer that is longer (in characters) or nested deeper is no answer to a problem: it is unparsable.
LONGEST = 2_000
DEEPEST = 40
REMEMBERED = 200_000  # outcomes kept


class MathGrader:
    r"""Compares the last ``\boxed{…}`` with the gold answer; what follows it is ignored.

    `correct` and `incorrect` are verdicts; `unparsable` has no box or no mathematics in it; `timeout` took more than
    ``seconds`` of processor time (or five times as long on the clock), `error` more than ``memory`` bytes, or ended its
    worker twice. Outcomes are kept by content: equal (gold, answer, options) are computed once.
    """

    def __init__(self, workers: int | None = None, seconds: float = 1.0, memory: int = 2**30) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError("grader 'math': the package math-verify is missing; install it or use 'numeric'.")
        self.name = f"math-1 (math-verify {version('math-verify')}, {seconds:g} s)"
        # The processes of a run that are on one machine share its processors (torchrun's name for how many they are).
        share = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.pool = Pool(workers or max(1, share), seconds, memory)
        self._known: dict[Task, Outcome] = {}
        self._lock = threading.Lock()  # one call at a time: workers report in order

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = PLAIN,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per (gold answer, response); ``options`` are for all or one each.

        Raises UserError where a gold answer is no mathematics and the answer differs from it (see ``check_golds``); its
        message has the item of ``ids``.
        """
        each = [options] * len(golds) if isinstance(options, Options) else options
        answers = [(joined_boxes if o.list_answer else boxed)(r) for r, o in zip(responses, each, strict=True)]
        return self.compare(golds, answers, each, ids)

    def compare(
        self,
        golds: Sequence[str],
        answers: Sequence[str | None],
        options: Options | Sequence[Options] = PLAIN,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """Like ``verify``, of bare answers; None has none."""
        each = [options] * len(golds) if isinstance(options, Options) else options
        golds = [unwrapped(gold) for gold in golds]
        tasks = [None if a is None else (g, a, o) for g, a, o in zip(golds, answers, each, strict=True)]
        with self._lock:
            known: dict[Task | None, Outcome] = {None: "unparsable"}
            hard = []
            for task in dict.fromkeys(tasks):
                if task is None:
                    continue
                outcome = self._known.get(task) or at_once(*task)
                if outcome is None:
                    hard.append(task)
                else:
                    known[task] = outcome
            for task, found in zip(hard, self.pool.run(hard), strict=True):
                if found == UNPARSABLE_GOLD:
                    where = f"{ids[tasks.index(task)]}: " if ids else ""
                    raise UserError(
                        f"{where}the gold answer {task[0]!r} cannot be read as mathematics; mend the dataset."
                    )
                known[task] = cast("Outcome", found)
                if found != "error":
                    self._known[task] = known[task]
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
            return [known[task] for task in tasks]

    def check_golds(self, golds: Sequence[str], ids: Sequence[str], options: Options = PLAIN) -> None:
        """Judge gold answers against themselves, without shortcuts; UserError names those that come out wrong."""
        bad = self.unfit_golds(golds, options)
        if bad:
            some = ", ".join(f"{ids[i]} ({golds[i]!r})" for i in bad[:5])
            more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
            raise UserError(f"gold answers that cannot be read as mathematics: {some}{more}. Mend or leave them out.")

    def unfit_golds(self, golds: Sequence[str], options: Options = PLAIN) -> list[int]:
        """Places of gold answers that mathematics does not find equal to themselves."""
        golds = [unwrapped(gold) for gold in golds]
        hard = [g for g in dict.fromkeys(golds) if not (g.isdecimal() or options.text)]
        with self._lock:
            found = dict(zip(hard, self.pool.run([(g, g, options) for g in hard]), strict=True))
        return [i for i, g in enumerate(golds) if found.get(g, "correct") != "correct"]

    def forget(self) -> None:
        """Drop the outcomes that are kept."""
        self._known.clear()

    def close(self) -> None:
        """End the workers; they are started again when needed."""
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unwrapped(gold: str) -> str:
    """A gold answer without its box, if it has one."""
    content = joined_boxes(gold)
    return gold if content is None else content


def at_once(gold: str, answer: str, options: Options) -> Outcome | None:
    """The outcome where it is plain without computer algebra, else None."""
    if len(answer) > LONGEST or not answer.strip():
        return "unparsable"
    expected, given = tidy(gold), tidy(answer)
    if expected == given:
        return "correct"
    if options.text:
        return "incorrect"
    if _depth(given) > DEEPEST:
        return "unparsable"
    if other_base(expected, given):
        return "incorrect"
    if options.list_answer:
        return None
    a, b = number(expected), number(given)
    return None if a is None or b is None else "correct" if agree(a, b, options) else "incorrect"


def _depth(text: str) -> int:
    """How many brackets are open at once, at most."""
    steps = ((c in "([{") - (c in ")]}") for c in text)
    return max(itertools.accumulate(steps), default=0)
