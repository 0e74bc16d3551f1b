"""Whether two quantities are the same: numbers with units, percentages and angles. Imported by workers only."""

from __future__ import annotations

import re

from . import notation, units
from .messages import UnreadableGold
from .numbers import agree, parse_number
from .options import Options
from .parser import parse
from .values import equal, is_endless, is_number

_NUMBER_OF_DEGREES = re.compile(r"(\d+(?:\.\d+)?|[A-Za-z]|\)|\}) ?\^\\circ ?")


class Unparsable(Exception):
    """The answer cannot be read as mathematics."""


class Endless(Exception):
    """Evaluation would not end."""


def same_quantity(gold: str, answer: str, options: Options) -> bool:
    """Whether two values, with their units where both have one, are the same."""
    if len(notation.split_top(gold, ":")) != len(notation.split_top(answer, ":")):
        return False  # a ratio and its quotient are not the same
    wanted = units.read_quantity(gold, False)
    if wanted.unit is None and re.match(r"[-+]?[\d.,/]+ ", gold):
        wanted = units.read_quantity(gold, True)
    expression = parse(wanted.value)
    if expression is None:
        wanted, expression = units.Quantity(gold, None), parse(gold)
    found = units.read_quantity(answer, is_number(expression))
    angles = {wanted.unit, found.unit} == {units.DEGREE, units.RADIAN}
    if units.differ(wanted.unit, found.unit) and not angles:
        return False
    if units.PERCENT in (wanted.unit, found.unit) and () in (wanted.unit, found.unit):
        return False  # a percentage is no number of things
    if {wanted.unit, found.unit} == {units.PERCENT, None}:
        return _same_percentage(wanted, found, options)
    gold_text, answer_text = _in_one_angle(wanted, found, options)
    return _same_number(gold_text, answer_text, options)


def _same_percentage(gold: units.Quantity, given: units.Quantity, options: Options) -> bool:
    """Whether a percentage and a number without a sign are the same: 10 or 0.1 for 10%, but no 2 for 200%."""
    if _same_number(gold.value, given.value, options):
        return True
    percentage, number = (gold.value, given.value) if gold.unit else (given.value, gold.value)
    return not number.lstrip("-").isdecimal() and _same_number(number, rf"\frac{{{percentage}}}{{100}}", options)


def _same_number(gold_text: str, answer_text: str, options: Options) -> bool:
    a, b = parse_number(notation.compact(gold_text)), parse_number(notation.compact(answer_text))
    if a and b:
        return agree(a, b, options)
    return _equal_texts(gold_text, answer_text, options)


def _in_one_angle(gold: units.Quantity, given: units.Quantity, options: Options) -> tuple[str, str]:
    """Both values in degrees if one of them may be a number of degrees, else in radians."""
    gold_text, answer_text = gold.value, given.value
    gold_degrees = gold.unit == units.DEGREE or "^\\circ" in gold_text
    given_degrees = given.unit == units.DEGREE or "^\\circ" in answer_text
    in_radians = given.unit == units.RADIAN or (given.unit is None and "\\pi" in answer_text)
    if gold_degrees and not given_degrees and in_radians:
        return _radians(gold_text, gold.unit == units.DEGREE), answer_text
    if given_degrees and not gold_degrees and not options.degrees:
        return gold_text, _radians(answer_text, given.unit == units.DEGREE)
    return gold_text.replace("^\\circ", ""), answer_text.replace("^\\circ", "")


def _radians(text: str, whole: bool) -> str:
    """A number of degrees in radians; ``whole``: all of ``text`` is one, else what has a degree sign."""
    if whole:
        return "\\frac{\\pi}{180} \\cdot (" + text.replace("^\\circ", "") + ")"
    return _NUMBER_OF_DEGREES.sub(r"\1 \\cdot \\frac{\\pi}{180} ", text)


def _equal_texts(gold: str, answer: str, options: Options) -> bool:
    expected, given = parse(gold), parse(answer)
    if expected is None:
        raise UnreadableGold(gold)
    if given is None:
        raise Unparsable(answer)
    if is_endless(expected) or is_endless(given):
        raise Endless
    return equal(expected, given, options)
