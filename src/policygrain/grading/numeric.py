"""Exact match of numbers, and of text where the gold answer is not a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Self

from ..errors import UserError
from .numbers import PLAIN, Options
from .outcome import Outcome, boxed

# Integers, decimals and plain fractions of a length that a problem could have; everything else is compared as text.
_NUMBER = re.compile(r"[-+]?\d{1,40}(?:\.\d{1,40})?(?:/\d{1,40})?")


def number(text: str) -> Fraction | None:
    """The number that ``text`` writes (`1,234`, `-3.50`, `2/3`, `$18`), or None."""
    text = text.strip().strip("$").replace(",", "").replace(" ", "").removesuffix(".")
    if not _NUMBER.fullmatch(text):
        return None
    top, _, bottom = text.partition("/")
    return None if bottom and not int(bottom) else Fraction(top) / (int(bottom) if bottom else 1)


class NumericGrader:
    r"""Compares the last ``\boxed{…}`` with the gold answer: as numbers, else as text without spaces."""

    name = "numeric-1"

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = PLAIN,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per (gold answer, response): correct, incorrect, or unparsable without a boxed answer.

        UserError where ``options`` ask for more than equality.
        """
        each = [options] if isinstance(options, Options) else options
        if wanting := [i for i, o in enumerate(each) if o != PLAIN]:
            where = f"{ids[wanting[0]]}: " if ids else ""
            raise UserError(f"{where}tolerances and lists of answers need `grader: math` in the study.")
        return [self._grade(gold, response) for gold, response in zip(golds, responses, strict=True)]

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grade(self, gold: str, response: str) -> Outcome:
        answer = boxed(response)
        if answer is None:
            return "unparsable"
        expected, given = number(gold), number(answer)
        if expected is None:
            return "correct" if "".join(gold.split()) == "".join(answer.split()) else "incorrect"
        return "unparsable" if given is None else "correct" if given == expected else "incorrect"
