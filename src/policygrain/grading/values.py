"""Whether two values are the same: quantities with units, percentages, angles, and sympy expressions.

Imported by workers only: comparing may take any time and memory.
"""

from __future__ import annotations

import random
import re
from typing import Any

import sympy
from math_verify import verify
from sympy.core.function import AppliedUndef

from . import notation, units
from .grader import Options, UnreadableGold
from .numeric import agree, parse_number
from .parser import parse

_NUMBER_OF_DEGREES = re.compile(r"(\d+(?:\.\d+)?|[A-Za-z]|\)|\}) ?\^\\circ ?")
_DIGITS = 15
_BITS_PER_DIGIT = 3.3219
_MAX_EXPONENT = 12  # digits of an exponent beyond which its size does not matter
_DIFFERENT = 1e-5  # relative difference from which two values of 15 digits are not the same


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
    actual = units.read_quantity(answer, is_number(expression))
    angles = {wanted.unit, actual.unit} == {units.DEGREE, units.RADIAN}
    if units.differ(wanted.unit, actual.unit) and not angles:
        return False
    if units.PERCENT in (wanted.unit, actual.unit) and () in (wanted.unit, actual.unit):
        return False  # a percentage is no number of things
    if {wanted.unit, actual.unit} == {units.PERCENT, None}:
        return _same_percentage(wanted, actual, options)
    gold_text, answer_text = _in_one_angle(wanted, actual, options)
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
    expected, actual = parse(gold), parse(answer)
    if expected is None:
        raise UnreadableGold(gold)
    if actual is None:
        raise Unparsable(answer)
    if is_endless(expected) or is_endless(actual):
        raise Endless
    return equal(expected, actual, options)


def equal(gold: Any, given: Any, options: Options) -> bool:
    """Whether two expressions are equal, or numbers within a tolerance."""
    given = with_symbols_of(gold, given)
    if isinstance(gold, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        return gold.shape == given.shape and all(equal(a, b, options) for a, b in zip(gold, given, strict=True))
    if not (isinstance(gold, sympy.Expr) and isinstance(given, sympy.Expr)):
        return bool(gold == given)
    values = evaluated([gold, given]) if gold.free_symbols == given.free_symbols else None
    if values:
        expected, value = values
        if options.within_tolerance(expected, value):
            return True
        # A difference in value is proof. It comes first because simplifying different expressions takes longest,
        # and because math-verify takes numbers for equal that agree in six decimals: 2^{-30} and 2^{-40}.
        if _differ(expected, value):
            return False
    if getattr(gold, "is_Symbol", False) and getattr(given, "is_Symbol", False):
        # Single letters are variables, in which case matters; longer names are words.
        return bool(gold.name == given.name or (len(gold.name) > 1 and gold.name.lower() == given.name.lower()))
    if any(a is sympy.E and getattr(b, "is_Symbol", False) for a, b in ((gold, given), (given, gold))):
        return False  # math-verify takes the variable E for e
    if values and (gold.is_Symbol or given.is_Symbol):
        return bool(sympy.simplify(gold - given) == 0)  # math-verify would compare names
    return verify(gold, given, timeout_seconds=None)


def with_symbols_of(gold: Any, given: Any) -> Any:
    """``given`` with the variables of ``gold`` of the same name: the parser may assume that they are real, or not."""
    known = {symbol.name: symbol for symbol in getattr(gold, "free_symbols", ())}
    names = {s: known[s.name] for s in getattr(given, "free_symbols", ()) if known.get(s.name, s) != s}
    return given.subs(names) if names else given


def is_endless(expression: Any) -> bool:
    """Whether evaluation would not end: an exponent of more than 10,000 digits, or the factorial of such a number."""
    return any(
        (isinstance(node, sympy.Pow) and _digits(node.exp) > 10_000)
        or (isinstance(node, sympy.factorial) and _digits(node.args[0]) > 5)
        for node in sympy.preorder_traversal(expression)
    )


def is_number(expression: Any) -> bool:
    """Whether an expression has no variables and no unknown functions: `f(2)` is no number."""
    return isinstance(expression, sympy.Basic) and not expression.free_symbols and not expression.has(AppliedUndef)


def _differ(a: Any, b: Any) -> bool:
    return bool(abs(a - b) > _DIFFERENT * max(abs(a), abs(b)))


def evaluated(expressions: list[Any], point: int = 0) -> list[Any] | None:
    """The values of expressions with one number for each variable; ``point`` chooses it, below 0 if odd."""
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    draw = random.Random(point)
    sign = -1 if point % 2 else 1
    numbers = {name: sympy.Rational(sign * draw.randrange(5_000, 12_000), 4211) for name in names}
    try:
        # Strict: an error if cancellation leaves no digits, as in a sum of roots that is zero.
        values = [e.evalf(_DIGITS, subs=numbers, strict=True) for e in expressions]
        if all(part.is_Number and part.is_finite for value in values for part in value.as_real_imag()):
            return values
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError):
        pass
    return None


def _digits(expression: Any) -> float:
    """About the decimal digits before the point of a product, power or factorial of numbers; 0 for others."""
    if isinstance(expression, sympy.Integer):
        return int(expression).bit_length() / _BITS_PER_DIGIT
    arguments = [_digits(a) for a in getattr(expression, "args", ())]
    if isinstance(expression, sympy.Pow):
        return arguments[0] * 10 ** min(arguments[1], _MAX_EXPONENT)
    if isinstance(expression, sympy.factorial):
        return arguments[0] * 10 ** min(arguments[0], _MAX_EXPONENT)
    return sum(arguments)
