"""Whether two parsed expressions are equal: by their values, then by math-verify, then where variables are positive."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

import sympy
from math_verify import verify
from sympy.core.function import AppliedUndef

from .grader import Options


def equal(gold: Any, given: Any, options: Options) -> bool:
    """Whether two expressions are equal, or numbers within a tolerance."""
    given = renamed(gold, given)
    if isinstance(gold, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        return gold.shape == given.shape and all(equal(a, b, options) for a, b in zip(gold, given, strict=True))
    if not (isinstance(gold, sympy.Expr) and isinstance(given, sympy.Expr)):
        return bool(gold == given)
    values = evaluated([gold, given]) if gold.free_symbols == given.free_symbols else None
    if values:
        expected, value = values
        if not gold.free_symbols and options.within_tolerance(expected, value):
            return True
        # Expressions of different values differ. This is checked first because simplifying different expressions takes
        # longest, and because math-verify accepts numbers that are equal to six decimals, such as 2^{-30} and 2^{-40}.
        if abs(expected - value) > 1e-5 * max(abs(expected), abs(value)):
            return False
    # Single letters are variables: case matters, and E is not e. Longer names are words.
    letters = [str(one) for one in (gold, given) if one is sympy.E or getattr(one, "is_Symbol", False)]
    if len(letters) == 2 and min(map(len, letters)) == 1:
        return letters[0] == letters[1] and type(gold) is type(given)
    if gold.is_Piecewise or given.is_Piecewise:
        return _same_cases(gold, given)
    return verify(gold, given, timeout_seconds=None) or (values is not None and _equal_if_positive(gold, given))


def _same_cases(gold: Any, given: Any) -> bool:
    """Whether two values with cases are the same: case by case in any order, or by simplifying their difference."""
    if gold.is_Piecewise and given.is_Piecewise:
        return matched(gold.args, given.args, lambda a, b: a[1] == b[1] and equal(a[0], b[0], Options()))
    return bool(sympy.simplify(gold.rewrite(sympy.Piecewise) - given.rewrite(sympy.Piecewise)) == 0)


def _equal_if_positive(gold: Any, given: Any) -> bool:
    r"""Whether roots, powers or logarithms of positive quantities were split or joined: `\sqrt{1/n}` is `1/\sqrt n`.

    Equal where variables are positive, and where one that is alone under a root is not: unlike `\sqrt{x^2}` and `x`.
    """
    roots = [p for e in (gold, given) for p in e.atoms(sympy.Pow, sympy.log) if p.free_symbols]
    roots = [p for p in roots if not ((isinstance(p, sympy.Pow) and p.exp.is_integer) or gold.has(sympy.floor))]
    quantities = set().union(*(p.free_symbols for p in roots if len(p.free_symbols) > 1))
    points: list[Any] = [(0, ()), (2, ()), (4, ()), *((0, {symbol}) for symbol in gold.free_symbols - quantities)]
    for point, negative in points:
        values = evaluated([gold, given, *roots], point, negative)
        is_real = values is not None and all(value.is_real for value in values)
        if abs(values[0] - values[1]) > 1e-9 * abs(values[0]) if values and is_real else not negative:
            return False
    return bool(roots)


def is_number(expression: Any) -> bool:
    """Whether an expression has no variables and no unknown functions: `f(2)` is not a number."""
    return isinstance(expression, sympy.Basic) and not expression.free_symbols and not expression.has(AppliedUndef)


def renamed(gold: Any, given: Any) -> Any:
    """``given`` with the variables of ``gold`` of the same name: the parser may assume that they are real, or not."""
    known = {symbol.name: symbol for symbol in getattr(gold, "free_symbols", ())}
    names = {s: known[s.name] for s in getattr(given, "free_symbols", ()) if known.get(s.name, s) != s}
    return given.subs(names) if names else given


def evaluated(expressions: list[Any], point: int = 0, negative: Collection[Any] = ()) -> list[Any] | None:
    """The values of expressions at random values of their variables, or None if one cannot be evaluated.

    ``point`` is the seed of the variables' values, which are negative if it is odd, or for ``negative`` variables.
    """
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    draw = random.Random(point)
    sign = -1 if point % 2 else 1
    numbers = {n: sympy.Rational((-1) ** (n in negative) * sign * draw.randrange(5_000, 12_000), 4211) for n in names}
    try:
        # Strict: an error if cancellation leaves no digits, as in a sum of roots that is zero.
        values = [e.evalf(15, subs=numbers, strict=True) for e in expressions]
        if all(part.is_Number and part.is_finite for value in values for part in value.as_real_imag()):
            return values
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError):
        pass
    return None


def matched(golds: list[Any], answers: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether answers and gold answers can be matched one to one."""
    remaining = list(answers)
    for gold in golds:
        place = next((i for i, answer in enumerate(remaining) if same(gold, answer)), None)
        if place is None:
            return False
        del remaining[place]
    return not remaining
