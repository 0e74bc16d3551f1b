r"""Numbers that can be compared exactly without computer algebra: `-3.50`, `1,234`, `2/3`, `\frac{2}{3}`, `4.5e33`."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Options:
    """How a benchmark wants its answers compared. Tolerances are for numbers and are bounds, not roundings."""

    relative_tolerance: float | None = None  # share of the gold answer
    absolute_tolerance: float | None = None
    # The gold answer is no mathematics, and known for it: answers are compared as text.
    text: bool = False
    list_answer: bool = (
        False  # the gold answer is a list: all are asked for, in any order, in one box or in adjacent ones
    )

    @classmethod
    def of(cls, problem: Any) -> Options:
        """What a problem says of how its answers are compared."""
        return cls(problem.relative_tolerance, problem.absolute_tolerance, problem.text, problem.list_answer)

    def close(self, gold: Any, given: Any) -> bool:
        """Whether ``given`` is within a tolerance of ``gold``, numbers of any kind; never where none is set."""
        difference = abs(gold - given)
        relative, absolute = self.relative_tolerance, self.absolute_tolerance
        return bool(
            (relative is not None and difference <= relative * abs(gold))
            or (absolute is not None and difference <= absolute)
        )


PLAIN = Options()


@dataclass(frozen=True)
class Number:
    """The value that a text writes; ``decimal`` where it has a decimal point and may therefore be rounded."""

    value: Fraction
    decimal: bool


# Lengths that a problem could have: a longer number is compared as any other expression is, within the limits there.
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,60})"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]{{0,60}})?|\.[0-9]{{1,60}})"
_POWER = r"(?:[eE]([-+]?[0-9]{1,3})|(?:\\times|\\cdot|\*)10\^(?:\{([-+]?[0-9]{1,3})\}|([0-9])(?![0-9])))"
_SCIENTIFIC = re.compile(rf"([-+]?)({_DECIMAL}){_POWER}?")
_FRACTION = re.compile(rf"([-+]?)(?:({_DECIMAL})/({_DECIMAL})|\\[dtc]?frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}})")
_BASE = re.compile(r"([0-9A-Za-z]{1,60})_(?:\{(-?[0-9]{1,2})\}|([0-9]{1,2}))")
_SPACES = re.compile(r"\\[,!;:]|\\ |~|\s+(?![0-9.])|(?<![0-9.,])\s+")


def tidy(text: str) -> str:
    """``text`` without what never carries meaning: outer space and dollar signs, thin spaces, a final full stop."""
    text = text.replace("−", "-").replace("{,}", ",").replace("\\$", "").replace("$", "")
    return unbraced(_SPACES.sub("", text).strip().removesuffix("."))


def unbraced(text: str) -> str:
    """``text`` without braces around the whole of it: `{{3}}` is `3`."""
    while text.startswith("{") and text.endswith("}"):
        depths = list(itertools.accumulate((c == "{") - (c == "}") for c in text))
        if 0 in depths[:-1] or depths[-1]:
            return text
        text = text[1:-1].strip()
    return text


def number(text: str) -> Number | None:
    """The number that a tidy ``text`` writes, or None: also for `1,3`, which is two of them."""
    if match := _SCIENTIFIC.fullmatch(text):
        sign, digits, *powers = match.groups()
        power = next((p for p in powers if p), "0")
        return Number(_fraction(sign, digits) * Fraction(10) ** int(power), "." in digits)
    if match := _FRACTION.fullmatch(text):
        sign, *parts = match.groups()
        top, bottom = (part for part in parts if part)
        if not Fraction(_clean(bottom)):
            return None
        return Number(_fraction(sign, top) / Fraction(_clean(bottom)), "." in top.strip(".") + bottom.strip("."))
    return None


def _clean(digits: str) -> str:
    return digits.replace(",", "").removesuffix(".") or "0"


def _fraction(sign: str, digits: str) -> Fraction:
    return (-1 if sign == "-" else 1) * Fraction(_clean(digits))


def agree(gold: Number, given: Number, options: Options) -> bool:
    """Equal, or within a tolerance, or the same in six decimals where one of them may be rounded."""
    if gold.value == given.value or options.close(gold.value, given.value):
        return True
    if not (gold.decimal or given.decimal):
        return False
    # The share keeps 1e-10 and 2e-10 apart, which are the same in six decimals.
    difference = abs(gold.value - given.value)
    return difference <= Fraction(1, 10**6) and difference <= abs(gold.value) / 10**5


def other_base(gold: str, given: str) -> bool:
    """Whether both name a base and differ in it or in digits: `22_6` and `22_7`. math-verify drops the base."""
    a, b = _BASE.fullmatch(gold), _BASE.fullmatch(given)
    return bool(a and b) and [g for g in a.groups() if g] != [g for g in b.groups() if g]  # type: ignore[union-attr]
