"""Grading of one answer against one gold answer by computer algebra. Imported by workers only."""

from __future__ import annotations

import logging
import re
from itertools import chain

import sympy

from . import notation, units
from .messages import UnreadableGold
from .numbers import agree, parse_number
from .options import Options
from .outcome import Outcome
from .parser import parse, parse_in_two_stages
from .values import equal, is_endless, is_number
from .warm_up import PAIRS

_NUMBER_OF_DEGREES = re.compile(r"(\d+(?:\.\d+)?|[A-Za-z]|\)|\}) ?\^\\circ ?")
_RESIDUE = re.compile(r"\\[bp]?mod(?![a-zA-Z])")
LARGEST_FILE = 0  # bytes: no answer may write files
ROUNDING = 0.01  # largest relative difference of a value and its rounding in `3.14159 ≈ 3.14`


class _Unparsable(Exception):
    """The answer cannot be read as mathematics."""


class _Endless(Exception):
    """Evaluation would not end."""


def grade_pair(gold: str, answer: str, options: Options) -> Outcome:
    """The outcome of an answer. Raises UnreadableGold or MemoryError, or does not return."""
    gold, answer = notation.normalize(gold), notation.normalize(answer)
    if not _is_readable(gold):
        raise UnreadableGold(gold)
    try:
        return "correct" if _same(gold, answer, options) else "incorrect"
    except _Unparsable:
        return "unparsable"
    except _Endless:
        return "timeout"


def _is_readable(gold: str) -> bool:
    if notation.clock(gold) or parse(gold) is not None:
        return True
    items = notation.bracketed(notation.without_member(gold))[1]
    return all(item and parse(units.read_quantity(item, True).value) is not None for item in items)


def _same(gold: str, answer: str, options: Options) -> bool:
    """Whether a normalized answer, a single one or a collection, is the same as the gold answer."""
    gold, answer = notation.without_base_ten(gold), notation.without_base_ten(answer)
    if notation.bases(gold) != notation.bases(answer):
        return False
    if time := notation.clock(gold):
        # Not as a ratio: 12:30 is not 2:5. The answer may leave out a.m. and p.m.
        given = notation.clock(answer)
        return given is not None and given[:3] == time[:3] and given[3] in ("", time[3])
    if len(notation.split_top(gold, ":")) != len(notation.split_top(answer, ":")):
        return False  # a ratio and its quotient, or a time and a number, are not the same
    gold, answer = notation.without_member(gold), notation.without_member(answer)
    if not options.list_answer or ", " in gold:
        gold = notation.without_thousands(gold)
    if not options.list_answer or ", " in answer:
        answer = notation.without_thousands(answer)
    if "\\begin" in gold + answer or notation.is_relation(gold + answer):
        return _same_value(gold, answer, options)
    brackets, golds = notation.bracketed(gold)
    given_brackets, answers = notation.bracketed(answer)
    if len(golds) == 1 and len(answers) == 1 and brackets == given_brackets == "":
        expanded = notation.both_signs(golds), notation.both_signs(answers)
        if len(expanded[0]) == len(expanded[1]) == 1:
            return _same_value(gold, answer, options)
    return _same_items(brackets, golds, given_brackets, answers, options)


def _same_items(brackets: str, golds: list[str], given_brackets: str, answers: list[str], options: Options) -> bool:
    """Whether two collections are the same. Order matters unless the gold answer is a set or has no brackets."""
    golds, brackets = _assigned(golds, brackets)
    answers, given_brackets = _assigned(answers, given_brackets)
    golds, answers = notation.both_signs(golds), notation.both_signs(answers)
    if len(golds) != len(answers):
        return False
    expected, given = _assignments(golds), _assignments(answers)
    if expected and given:
        return expected.keys() == given.keys() and all(_same_item(expected[n], given[n], options) for n in expected)
    if expected and not any("=" in answer for answer in answers):
        golds, brackets = [*expected.values()], "()"  # values without names are in the order of the names
    if given and brackets:
        answers = [*given.values()]
    kinds = {brackets, given_brackets} - {""}
    if len(kinds) > 1:
        return False
    if "{}" in kinds or not kinds:
        return _match(golds, answers, options)
    if kinds != {"()"} and not (brackets and given_brackets):
        return False  # an interval without its brackets
    return all(_same_item(g, a, options) for g, a in zip(golds, answers, strict=True))


def _assigned(items: list[str], brackets: str) -> tuple[list[str], str]:
    """`(x,y) = (1,2)` as assignments; other items as they are."""
    if len(items) == 1 and not brackets:
        sides = notation.equation_members(items[0])
        if len(sides) == 2:
            names, values = notation.bracketed(sides[0]), notation.bracketed(sides[1])
            if names[0] == values[0] == "()" and len(names[1]) == len(values[1]):
                return [f"{n} = {v}" for n, v in zip(names[1], values[1], strict=True)], ""
            if values[0] and not names[0] and len(names[1]) == 1:  # A = {1, 2}
                return values[1], values[0]
    return items, brackets


def _assignments(items: list[str]) -> dict[str, str]:
    """Value by name if all items are `name = value` with different names, else {}."""
    found: dict[str, str] = {}
    for item in items:
        sides = notation.equation_members(item)
        if len(sides) != 2 or not re.fullmatch(r"\\?[A-Za-z]+(?:_(?:\w|\{\w+\}))?", sides[0]) or sides[0] in found:
            return {}
        found[sides[0]] = sides[1]
    return found if len(found) > 1 else {}


def _match(golds: list[str], answers: list[str], options: Options) -> bool:
    """Whether each answer equals a gold answer of its own."""
    remaining = list(answers)
    for gold in golds:
        place = next((i for i, a in enumerate(remaining) if _same_item(gold, a, options)), None)
        if place is None:
            return False
        del remaining[place]
    return True


def _same_item(gold: str, answer: str, options: Options) -> bool:
    try:
        return bool(gold and answer) and _same(gold, answer, options)
    except _Unparsable:
        return False


def _same_value(gold: str, answer: str, options: Options) -> bool:
    """Whether two single values, or equations, are the same."""
    if notation.APPROXIMATELY in gold + answer:
        exact, rounded = _with_roundings(gold), _with_roundings(answer)
        return any(_same_value(g, a, options) for g in exact for a in rounded)
    golds, answers = notation.equation_members(gold), notation.equation_members(answer)
    golds = _shortened(golds) or golds
    if len(answers) > 1:
        shortened = _shortened(answers)
        if shortened is None or (len(golds) == 1 and len(shortened) == 2 and not _is_name(shortened[0])):
            return False
        answers = shortened[-1:] if len(golds) == 1 else shortened
    if len(golds) == 2 and len(answers) == 1 and _is_name(golds[0]):
        golds = golds[1:]
    return _same_quantity(" = ".join(golds), " = ".join(answers), options)


def _with_roundings(text: str) -> list[str]:
    """The exact and the rounded forms of `x = \\sqrt 2 ≈ 1.41`; none if they are too far apart to be the same."""
    first, *rest = (part.strip() for part in text.split(notation.APPROXIMATELY))
    if not rest:
        return [first]
    if len(notation.equation_members(first)) == 1 and not is_number(parse(units.read_quantity(first, True).value)):
        return [f"{first} = {rest[0]}"]
    value = parse(units.read_quantity(notation.equation_members(first)[-1], True).value)
    for other in rest:
        rounding = parse(units.read_quantity(other, True).value)
        if value is None or rounding is None or is_endless(value) or is_endless(rounding):
            return []
        if not equal(value, rounding, Options(relative_tolerance=ROUNDING)):
            return []
    return [first, *rest]


def _shortened(members: list[str]) -> list[str] | None:
    """An equation or chain as [name, value], or [value] if it has no name; None if its values differ."""
    if len(members) < 2:
        return members
    named = any(c.isalpha() for c in re.sub(r"\\[a-z]+", "", members[0])) or not is_number(parse(members[0]))
    values = [units.read_quantity(member, True).value for member in members[named:]]
    last = parse(values[-1])
    for text in values[:-1]:
        found = parse(text)
        if getattr(found, "is_Symbol", False):
            continue  # another name, as in `a = b = 5`
        if found is None or last is None or is_endless(found) or not equal(last, found, Options()):
            return None
    return [members[0], members[-1]] if named else members[-1:]


def _is_name(text: str) -> bool:
    """Whether the left side of an equation names a value (`x`, `AB`, `f(x)`, `m + n`), unlike `2x` or `x^2`."""
    found = parse(text)
    if found is None or not isinstance(found, sympy.Expr):
        return True
    return bool(found.is_Symbol or found.is_Function or len(found.free_symbols) > 1)


def _same_quantity(gold: str, answer: str, options: Options) -> bool:
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
    if ("\\%" in gold and found.unit) or ("\\%" in answer and wanted.unit):
        return False  # a percentage is no amount of a unit
    if _RESIDUE.search(answer) and not _RESIDUE.search(gold):
        return False
    gold_text, answer_text = _in_one_angle(wanted, found, options)
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
        raise _Unparsable(answer)
    if is_endless(expected) or is_endless(given):
        raise _Endless
    return equal(expected, given, options)


def warm_up() -> None:
    """Fill the parser's and sympy's caches with what most answers need, so that workers start with them."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    parse_in_two_stages()
    for text in chain.from_iterable(PAIRS):
        parse(notation.normalize(text))
    for gold, answer in PAIRS[:8]:
        grade_pair(gold, answer, Options())
