r"""Numbers that are compared exactly without computer algebra: `-3.50`, `1,234`, `2/3`, `\frac{2}{3}`, `4.5e33`.

The numeric grader compares only such numbers; other gold answers are compared as text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ..errors import UserError
from .extraction import check_protocol, extract
from .grader import Grader, Item, Options, Outcome

# Integers, decimals and fractions only; numbers written in LaTeX are for the grader `math`.
_PLAIN = re.compile(r"[-+]? *\d[\d,./ ]*")


class Number(NamedTuple):
    """The value of a written number; ``decimal``: it has a decimal point, so it may be rounded."""

    value: Fraction
    decimal: bool


# At most 40 digits: longer numbers are compared as expressions, within the limits of the workers.
_INTEGER = r"(?:\d{1,3}(?:,\d{3}){1,13}|\d{1,3}(?:\s\d{3}){1,13}|\d{1,40})"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d{{1,40}})?|\.\d{{1,40}})"
_POWER = r"(?:[eE]([-+]?\d{1,3})|(?:\\times|\\cdot|\*)10\^(?:\{([-+]?\d{1,3})\}|(\d)(?!\d)))"
_SCIENTIFIC = re.compile(rf"([-+]?)({_DECIMAL}){_POWER}?")
_FRACTION = re.compile(rf"([-+]?)(?:({_DECIMAL})/({_INTEGER})|\\[dtc]?frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}})")
_SEPARATORS = re.compile(r"[,\s]")
# Spaces are kept only where they may separate digits: `1 000`, `1 2`.
OPTIONAL_SPACES = re.compile(r"\s+(?![\d.])|(?<![\d.,])\s+")


def unbraced(text: str) -> str:
    """``text`` without braces around the whole of it: `{{3}}` is `3`. Linear in its length."""
    partner: dict[int, int] = {}
    stack: list[int] = []
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            stack.append(match.start())
        elif not stack:
            return text
        else:
            partner[stack.pop()] = match.start()
    begin, end = 0, len(text)
    while text[begin : begin + 1] == "{" and partner.get(begin) == end - 1:
        begin, end = begin + 1, end - 1
        while begin < end and text[begin].isspace():
            begin += 1
        while begin < end and text[end - 1].isspace():
            end -= 1
    return text[begin:end]


def parse_number(text: str) -> Number | None:
    """The number written in ``text``, which has no optional spaces; None if it is not one number (`1,3` is two)."""
    if match := _SCIENTIFIC.fullmatch(text):
        sign, digits, *powers = match.groups()
        power = next((p for p in powers if p), "0")
        return Number(_fraction(sign, digits) * Fraction(10) ** int(power), "." in digits)
    if match := _FRACTION.fullmatch(text):
        sign, *parts = match.groups()
        top, bottom = (part for part in parts if part)
        divisor = _fraction("", bottom)
        return Number(_fraction(sign, top) / divisor, "." in top + bottom) if divisor else None
    return None


def _fraction(sign: str, digits: str) -> Fraction:
    value = Fraction(_SEPARATORS.sub("", digits))
    return -value if sign == "-" else value


def agree(gold: Number, given: Number, options: Options) -> bool:
    """Whether the numbers are equal, within a tolerance or, if one has a decimal point, equal to six decimals."""
    if gold.value == given.value or options.within_tolerance(gold.value, given.value):
        return True
    if not (gold.decimal or given.decimal):
        return False
    # The relative bound distinguishes 1e-10 from 2e-10, which are equal to six decimals.
    difference = abs(gold.value - given.value)
    return difference <= Fraction(1, 10**6) and difference <= abs(gold.value) / 10**5


def open_brackets(text: str) -> list[int]:
    """The number of brackets that are open after each character."""
    return [*itertools.accumulate((c in "([{") - (c in ")]}") for c in text)]


def depth(text: str) -> int:
    """The largest number of brackets that are open at once."""
    return max(open_brackets(text), default=0)


class NumericGrader(Grader):
    """Compares the extracted answer with the gold answer as numbers, or as text if the gold answer is not a number."""

    def __init__(self, extraction: str = "boxed") -> None:
        self.extraction = check_protocol(extraction)
        self.name = "numeric-2" + ("" if extraction == "boxed" else f", {extraction}")

    def grade_items(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response; `unparsable`: no answer, or no number in it where the gold answer is a number.

        UserError if options ask for more than equality.
        """
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
            return "incorrect" if joined else "unparsable"
        return "correct" if actual.value == expected.value else "incorrect"


def _number(text: str) -> Number | None:
    text = text.strip().strip("$").strip(" ")
    return parse_number(OPTIONAL_SPACES.sub("", text).removesuffix(".")) if _PLAIN.fullmatch(text) else None
