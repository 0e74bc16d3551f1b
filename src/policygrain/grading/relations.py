r"""Equations, inequalities and sets of real numbers. Imported by workers only."""

from __future__ import annotations

import re
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from . import notation
from .grader import Options
from .parser import parse
from .values import equal, evaluated, with_symbols_of

_SIGN = r"[<>=]|\\(?:le|ge|ne)(?![a-zA-Z])"
_SETS = re.compile(r"\\(?:cup|cap|setminus|mathbb|emptyset)(?![a-zA-Z])|\\infty")
_MEMBER = re.compile(r"([A-Za-z](?:_\w)?(?:\([A-Za-z]\))?) ?\\in(?![a-zA-Z]) ?")
_BUILDER = re.compile(r"\\\{(?:(?P<head>[^|:<>]*?)(?:\||\\mid(?![a-zA-Z])|:))?(?P<condition>[^|]*)\\\}")
_CLOSED_AT_INFINITY = re.compile(r"\\infty ?\]|\[ ?-? ?\\infty")
_OR, _AND = r"\\lor(?![a-zA-Z])", r"\\land(?![a-zA-Z])"
_COMPARE = {"<": sympy.Lt, ">": sympy.Gt, "=": sympy.Eq, "\\le": sympy.Le, "\\ge": sympy.Ge, "\\ne": sympy.Ne}
_TURNED = {">": "<", "\\ge": "\\le"}
_POINTS = 3  # at which two expressions are compared

Relation = tuple[Any, str]  # a difference of two sides and its relation to zero: "=", "<", "\\le" or "\\ne"


def is_set(text: str) -> bool:
    """Whether ``text`` has an inequality sign or the notation of a set of numbers beside lists."""
    return notation.is_relation(text) or _SETS.search(text) is not None


def same_sets(gold: str, answer: str) -> bool:
    r"""Whether two texts are the same set of real numbers, or the same conditions: `0 \le x < 5` and `[0,5)`."""
    first, second = real_set(gold), real_set(answer)
    if first and second:
        names = {first[0], second[0]} - {""}
        return len(names) < 2 and _equal_sets(first[1], second[1])
    return _same_conditions(gold, answer)


def same_equations(gold: list[str], answer: list[str]) -> bool:
    """Whether two equations with two sides each say the same: one is a multiple of the other, or they look alike."""
    sides = [[parse(side) for side in equation] for equation in (gold, answer)]
    if any(side is None for equation in sides for side in equation):
        return False
    a, b = sides[0]
    c, d = with_symbols_of(sympy.Tuple(a, b), sympy.Tuple(*sides[1]))
    if any(all(equal(x, y, Options()) for x, y in pairs) for pairs in (((a, c), (b, d)), ((a, d), (b, c)))):
        return True
    return all(isinstance(side, sympy.Expr) for side in (a, b, c, d)) and _proportional((a - b, "="), (c - d, "="))


def real_set(text: str) -> tuple[str, sympy.Set] | None:
    """The name of the variable, "" if there is none, and the set of real numbers that ``text`` describes, or None."""
    if match := _builder(text):
        condition, domain = real_set(match["condition"].strip()), _MEMBER.match((match["head"] or "").strip())
        if condition is None or domain is None:
            return condition
        numbers = parse(domain.string[domain.end() :])
        return (condition[0], condition[1].intersect(numbers)) if isinstance(numbers, sympy.Set) else None
    for word, combine in ((_OR, sympy.Union), (_AND, sympy.Intersection)):
        parts = notation.split_top(text, word)
        if len(parts) > 1:
            sets = [one for part in parts if (one := real_set(part))]
            same_name = len(sets) == len(parts) and len({name for name, _ in sets}) == 1
            return (sets[0][0], combine(*(numbers for _, numbers in sets))) if same_name else None
    if notation.is_relation(text) or "=" in text:
        return _solved(text)
    value = None if _CLOSED_AT_INFINITY.search(text) else parse(without_variable(text))
    if not isinstance(value, sympy.Set) or value.free_symbols:
        return None
    member = _MEMBER.match(text)
    return (member[1] if member else ""), value


def _solved(text: str) -> tuple[str, sympy.Set] | None:
    """The solutions of a chain of inequalities in one variable or one function."""
    pairs = _pairs(text)
    symbols = {s for left, _, right in pairs or () for e in (left, right) for s in _unknowns(e)}
    if not pairs or len(symbols) != 1:
        return None
    unknown, x = symbols.pop(), sympy.Symbol("x", real=True)
    try:
        parts = [_COMPARE[sign](_at(left, unknown, x), _at(right, unknown, x)) for left, sign, right in pairs]
        return str(unknown), sympy.Intersection(*(part.as_set() for part in parts))
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return None


def _at(expression: Any, unknown: Any, x: sympy.Symbol) -> Any:
    return sympy.nsimplify(expression.subs(unknown, x), rational=True)


def _unknowns(expression: Any) -> set[Any]:
    """Variables of an expression; an applied function such as f(x) is one, and its argument is none."""
    functions = _functions(expression)
    return functions | expression.subs(dict.fromkeys(functions, 0)).free_symbols


def _functions(expression: Any) -> set[Any]:
    functions: set[Any] = expression.atoms(AppliedUndef)
    return functions


def without_variable(text: str) -> str:
    r"""``text`` without the variable of `x \in`."""
    return text[match.end() :] if (match := _MEMBER.match(text)) else text


def are_conditions(text: str) -> bool:
    """Whether all inequalities of ``text`` can be read."""
    return all(_pairs(part) for part in re.split(f"{_OR}|{_AND}", _condition(text)))


def _pairs(text: str) -> list[tuple[Any, str, Any]] | None:
    """The comparisons of a chain such as `0 < x < 5`; None if a member cannot be read."""
    members = [parse(member) if member else None for member in notation.split_top(text, _SIGN)]
    if not all(isinstance(member, sympy.Expr) for member in members):
        return None
    return list(zip(members, re.findall(_SIGN, text), members[1:], strict=False))


def _builder(text: str) -> re.Match[str] | None:
    r"""The parts of `\{x \in \mathbb{R} \mid x > 3\}`; the head may be missing."""
    match = _BUILDER.fullmatch(text)
    return match if match and notation.is_relation(match["condition"]) else None


def _condition(text: str) -> str:
    return match["condition"].strip() if (match := _builder(text)) else text


def _equal_sets(a: sympy.Set, b: sympy.Set) -> bool:
    a, b = (sympy.nsimplify(s, rational=True) if s.has(sympy.Float) else s for s in (a, b))
    if a == b:
        return True
    try:
        return bool(sympy.SymmetricDifference(a, b).doit().is_empty)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return False


def _same_conditions(gold: str, answer: str) -> bool:
    """Whether two texts have the same inequalities, in any order, joined by the same word."""
    for word in (_OR, _AND):
        parts = [notation.split_top(_condition(text), word) for text in (gold, answer)]
        if len(parts[0]) != len(parts[1]):
            return False
        if len(parts[0]) > 1:
            return matched(parts[0], parts[1], same_sets)
    first, second = _relations(gold), _relations(answer)
    return bool(first and second) and matched(first, second, _proportional)  # type: ignore[arg-type]


def matched(golds: list[Any], answers: list[Any], same: Any) -> bool:
    """Whether each answer is the same as a gold answer of its own."""
    if len(golds) != len(answers):
        return False
    remaining = list(answers)
    for gold in golds:
        place = next((i for i, answer in enumerate(remaining) if same(gold, answer)), None)
        if place is None:
            return False
        del remaining[place]
    return True


def _relations(text: str) -> list[Relation] | None:
    pairs = _pairs(_condition(text))
    if pairs is None:
        return None
    return [(right - left, _TURNED[sign]) if sign in _TURNED else (left - right, sign) for left, sign, right in pairs]


def _proportional(a: Relation, b: Relation) -> bool:
    """Whether two relations say the same: their differences have a constant ratio, positive for an inequality."""
    b = with_symbols_of(a[0], b[0]), b[1]
    if a[1] != b[1] or a[0].free_symbols != b[0].free_symbols:
        return False
    differences = [sympy.fraction(sympy.together(d))[0] if a[1] == "=" else d for d in (a[0], b[0])]
    differences = [d.subs({f: sympy.Symbol(str(f)) for f in d.atoms(AppliedUndef)}) for d in differences]
    values = [evaluated(differences, point) for point in range(_POINTS)]
    if None in values:
        return equal(a[0], b[0], Options())
    if any(v[1] == 0 for v in values):  # type: ignore[index]
        return False
    ratios = [v[0] / v[1] for v in values]  # type: ignore[index]
    close = all(abs(r - ratios[0]) <= 1e-9 * abs(ratios[0]) for r in ratios)
    return bool(close and ratios[0] != 0 and (a[1] in ("=", "\\ne") or ratios[0].is_positive))
