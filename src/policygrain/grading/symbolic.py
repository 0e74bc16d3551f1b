"""Grading of one answer against one gold answer by computer algebra. Imported by workers only."""

from __future__ import annotations

import logging
import re
from itertools import chain
from typing import Any

import sympy

from . import notation, relations, units
from .grader import Options, Outcome, UnreadableGold
from .parser import PAIRS, parse, parse_in_two_stages
from .values import Endless, Unparsable, equal, is_endless, is_number, same_quantity

_SYMBOL = r"(?:[A-Za-z]|\\(?:text ?\{ ?[\w ]+ ?\}|[a-zA-Z]+))(?: ?_ ?(?:\w|\\?[a-z]+|\{[^{}]*\}))?"
_NAME = re.compile(rf"{_SYMBOL}(?: ?\([^()=]*\))?|{_SYMBOL}(?: ?: ?{_SYMBOL})+")
_POINTS = re.compile(r"(?:\\(?:angle|triangle|overline|frac)|[{}|/ ]|[A-Z](?:_\w|_\{\w\})?(?=.*[A-Z]|[^A-Z]*$))+")
LARGEST_FILE = 0  # bytes: no answer may write files
ROUNDING = 0.01  # largest relative difference of a value and its rounding in `3.14159 ≈ 3.14`


def grade_pair(gold: str, answer: str, options: Options) -> Outcome:
    """The outcome of an answer. Raises UnreadableGold or MemoryError, or does not return."""
    gold, answer = notation.normalize(gold), notation.normalize(answer)
    if not _is_readable(gold):
        raise UnreadableGold(gold)
    try:
        return "correct" if _same(gold, answer, options) else "incorrect"
    except Unparsable:
        return "unparsable"
    except Endless:
        return "timeout"


def _is_readable(gold: str) -> bool:
    if notation.clock(gold) or parse(gold) is not None or relations.real_set(gold):
        return True
    items = notation.bracketed(relations.without_variable(gold))[1]
    if len(items) == 1 and notation.is_relation(gold):
        return relations.are_conditions(gold)
    return all(item and parse(units.read_quantity(item, True).value) is not None for item in items)


def _same(gold: str, answer: str, options: Options) -> bool:
    """Whether a normalized answer, a single one or a collection, is the same as the gold answer."""
    if gold == answer:
        return True
    if notation.bases(gold) != notation.bases(answer):
        return False
    if time := notation.clock(gold):
        # Not as a ratio: 12:30 is not 2:5. The answer may leave out a.m. and p.m.
        answer_time = notation.clock(answer)
        return answer_time is not None and answer_time[:3] == time[:3] and answer_time[3] in ("", time[3])
    if not options.list_answer or ", " in gold:
        gold = notation.without_thousands(gold)
    if not options.list_answer or ", " in answer:
        answer = notation.without_thousands(answer)
    if "\\begin" in gold + answer:
        return _same_value(gold, answer, options)
    brackets, golds = notation.bracketed(relations.without_variable(gold))
    given_brackets, answers = notation.bracketed(relations.without_variable(answer))
    if relations.is_set(gold + answer) and (len(golds) == len(answers) == 1 or brackets or given_brackets):
        return relations.same_sets(gold, answer)
    single = len(notation.both_signs(golds)) == len(notation.both_signs(answers)) == 1
    if single and brackets == given_brackets == "":
        return _same_value(golds[0], answers[0], options)
    return _same_items(brackets, golds, given_brackets, answers, options)


def _same_items(brackets: str, golds: list[str], given_brackets: str, answers: list[str], options: Options) -> bool:
    """Whether two collections are the same. Order matters unless the gold answer is a set or has no brackets."""
    golds, brackets = _assigned(golds, brackets)
    answers, given_brackets = _assigned(answers, given_brackets)
    golds, answers = notation.both_signs(golds), notation.both_signs(answers)
    if len(golds) != len(answers):
        return False
    expected, actual = _assignments(golds), _assignments(answers)
    if expected and actual:
        return expected.keys() == actual.keys() and all(_same_item(expected[n], actual[n], options) for n in expected)
    if expected and not any("=" in answer for answer in answers):
        golds, brackets = [*expected.values()], "()"  # values without names are in the order of the names
    kinds = {brackets, given_brackets} - {""}
    if len(kinds) > 1:
        return False
    if "{}" in kinds or not kinds:
        if brackets != given_brackets and any(map(_is_finite_set, golds + answers)):
            return False  # a set is not the set that contains it
        same_kind = lambda g, a: not kinds or _is_finite_set(g) == _is_finite_set(a)  # noqa: E731
        return relations.matched(golds, answers, lambda g, a: same_kind(g, a) and _same_item(g, a, options))
    if kinds != {"()"} and not (brackets and given_brackets):
        return False  # an interval without its brackets
    return all(_same_item(g, a, options) for g, a in zip(golds, answers, strict=True))


def _is_finite_set(text: str) -> bool:
    return text.startswith(("\\{", "\\emptyset"))


def _assigned(items: list[str], brackets: str) -> tuple[list[str], str]:
    """`(x,y) = (1,2)` as assignments, `x = 1, 2` and `A = \\{1, 2\\}` as `1, 2`; other items as they are."""
    sides = notation.equation_members(items[0])
    if brackets or len(sides) != 2 or any("=" in item for item in items[1:]):
        return items, brackets
    names, values = notation.bracketed(sides[0]), notation.bracketed(sides[1])
    if len(items) > 1:
        return ([sides[1], *items[1:]], "") if _NAME.fullmatch(sides[0]) else (items, "")
    if names[0] == values[0] == "()" and len(names[1]) == len(values[1]):
        return [f"{n} = {v}" for n, v in zip(names[1], values[1], strict=True)], ""
    if values[0] and _NAME.fullmatch(sides[0]):
        return values[1], values[0]
    return items, brackets


def _assignments(items: list[str]) -> dict[str, str]:
    """Value by name if all items are `name = value` with different names, else {}."""
    values: dict[str, str] = {}
    for item in items:
        sides = notation.equation_members(item)
        if len(sides) != 2 or not _is_name(*sides) or sides[0] in values:
            return {}
        values[sides[0]] = sides[1]
    return values if len(values) > 1 else {}


def _same_item(gold: str, answer: str, options: Options) -> bool:
    try:
        return bool(gold and answer) and _same(gold, answer, options)
    except Unparsable:
        return False


def _same_value(gold: str, answer: str, options: Options) -> bool:
    """Whether two single values, or equations, are the same."""
    if notation.APPROXIMATELY in gold + answer:
        exact, rounded = _with_roundings(gold), _with_roundings(answer)
        return any(_same_value(g, a, options) for g in exact for a in rounded)
    golds, answers = _sides(gold) or notation.equation_members(gold), _sides(answer, turn=True)
    if answers is None:
        return False
    if len(golds) > 2 or len(answers) > 2:
        return len(golds) == len(answers) and all(
            _same_value(g, a, options) for g, a in zip(golds, answers, strict=True)
        )
    if len(golds) == 2 and len(answers) == 2:
        golds, answers = _renamed(golds, answers)
        if golds[0] != answers[0] or not _is_name(*golds):
            return relations.same_equations(golds, answers)
    elif len(golds) == 2 and not _is_name(*golds):
        return False  # an equation is not its right side
    elif len(answers) == 2 and not (_is_name(*answers) or _is_quantity_asked_for(answers[0], golds[0])):
        return False
    return same_quantity(golds[-1], answers[-1], options)


def _sides(text: str, turn: bool = False) -> list[str] | None:
    """A value as [value], an equation as [left, right] with a name on the left if it has one; None if it is false.

    Of a chain such as `x = 1 + 1 = 2`, the name and the last value remain. With ``turn``, `5 = x` is read as `x = 5`.
    """
    members = notation.equation_members(text)
    if turn and len(members) == 2 and _NAME.fullmatch(members[1]) and not _NAME.fullmatch(members[0]):
        members.reverse()
    values = [_value(member) for member in members]
    numbers = [is_number(value) for value in values]
    if len(members) > 1 and all(numbers[1:]):
        first = 0 if numbers[0] else 1
        if any(is_endless(value) for value in values[first:]):
            raise Endless
        if not all(equal(values[-1], value, Options()) for value in values[first:-1]):
            return None
        return [*members[:first], members[-1]]
    if len(members) > 2:  # a name with other names or forms of its value: `f = a = x + 1`
        return (
            [members[0], members[-1]]
            if all(
                getattr(v, "is_Symbol", False) or (v is not None and equal(values[-1], v, Options()))
                for v in values[1:-1]
            )
            else members
        )
    return members


def _value(text: str) -> Any:
    """The value of a quantity without its unit, or None."""
    quantity = units.read_quantity(text, True)
    return parse(rf"\frac{{{quantity.value}}}{{100}}" if quantity.unit == units.PERCENT else quantity.value)


def _is_name(left: str, right: str) -> bool:
    """Whether the left side of an equation names a value: a symbol, f(x), or points (`AB = 5`) for a number."""
    return bool(_NAME.fullmatch(left)) or bool(_POINTS.fullmatch(left) and is_number(_value(right)))


def _is_quantity_asked_for(left: str, gold: str) -> bool:
    """Whether the left side of an answer such as `m + n = 5` can be what a problem with the gold answer 5 asks for."""
    value = parse(left)
    return value is None or (isinstance(value, sympy.Expr) and len(value.free_symbols) > 1 and is_number(parse(gold)))


def _renamed(golds: list[str], answers: list[str]) -> tuple[list[str], list[str]]:
    """Equations with the argument of the gold answer's function in both: `f(n) = n + 1` and `f(x) = x + 1`."""
    gold, actual = (re.fullmatch(r"([A-Za-z]) ?\( ?([a-z]) ?\)", left) for left, _ in (golds, answers))
    if gold is None or actual is None or gold[1] != actual[1]:
        return golds, answers
    words = re.compile(r"\\[a-zA-Z]+|[a-z]")
    if gold[2] in words.findall(answers[1]):
        return golds, answers  # it is a constant of the answer
    return golds, [golds[0], words.sub(lambda m: gold[2] if m[0] == actual[2] else m[0], answers[1])]


def _with_roundings(text: str) -> list[str]:
    """The exact and the rounded forms of `x = \\sqrt 2 ≈ 1.41`; none if they are too far apart to be the same."""
    first, *rest = (part.strip() for part in text.split(notation.APPROXIMATELY))
    if not rest:
        return [first]
    if len(notation.equation_members(first)) == 1 and not is_number(_value(first)):
        return [f"{first} = {rest[0]}"]
    value = _value(notation.equation_members(first)[-1])
    for other in rest:
        rounding = _value(other)
        if value is None or rounding is None or is_endless(value) or is_endless(rounding):
            return []
        if not equal(value, rounding, Options(relative_tolerance=ROUNDING)):
            return []
    return [first, *rest]


def warm_up() -> None:
    """Fill the parser's and sympy's caches with what most answers need, so that workers start with them."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    parse_in_two_stages()
    for text in chain.from_iterable(PAIRS):
        parse(notation.normalize(text))
    for gold, answer in PAIRS[:8]:
        grade_pair(gold, answer, Options())
