"""The numeric grader: numbers are compared exactly, other gold answers as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from ..errors import UserError
from .extraction import check_protocol, extract
from .numbers import Number, parse_number, tidy
from .options import DEFAULT, Options
from .outcome import Outcome

# Integers, decimals and fractions only; numbers written in LaTeX are for the grader `math`.
_PLAIN = re.compile(r"[-+]? *\d[\d,./ ]*")


class NumericGrader:
    """Compares the extracted answer with the gold answer as numbers, or as text if the gold answer is no number."""

    def __init__(self, extraction: str = "boxed") -> None:
        self.extraction = check_protocol(extraction)
        self.name = "numeric-2" + ("" if extraction == "boxed" else f", {extraction}")

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = DEFAULT,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per (gold answer, response): correct, incorrect, or unparsable if there is no number in it.

        Raises UserError if ``options`` ask for more than equality.
        """
        each = [options] if isinstance(options, Options) else options
        if unsupported := [i for i, o in enumerate(each) if not o.exact]:
            where = f"{ids[unsupported[0]]}: " if ids else ""
            raise UserError(f"{where}tolerances and lists of answers need `grader: math` in the study.")
        return [self._grade(gold, response) for gold, response in zip(golds, responses, strict=True)]

    def close(self) -> None:
        """Nothing to do: there are no processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grade(self, gold: str, response: str) -> Outcome:
        answer = extract(response, self.extraction)
        if answer is None:
            return "unparsable"
        expected, given = _number(gold), _number(answer)
        if expected is None:
            return "correct" if "".join(gold.split()) == "".join(answer.split()) else "incorrect"
        if given is None:
            # `1,2` and `1 2` are two numbers: readable, but not the one that was asked for.
            joined = _number(answer.replace(",", "").replace(" ", ""))
            return "incorrect" if joined else "unparsable"
        return "correct" if given.value == expected.value else "incorrect"


def _number(text: str) -> Number | None:
    text = text.strip().strip("$").strip(" ")
    return parse_number(tidy(text)) if _PLAIN.fullmatch(text) else None
