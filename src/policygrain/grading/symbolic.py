"""Grading of one answer against one gold answer by computer algebra. Imported by workers only.

math-verify parses both texts and compares values. Cases that it accepts wrongly are rejected before: different items,
brackets, names, units, bases or words, and equations that are false.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

import sympy
from sympy.core.relational import Relational
from sympy.logic.boolalg import And

from . import notation
from .expressions import equal, is_number, matched, parse, renamed
from .grader import Options, Outcome, UnreadableGold
from .units import DEGREE, PERCENT, RADIAN, Quantity, differ, read_quantity

ROUNDING = Options(relative_tolerance=0.01)  # of a value and its rounding in `3.14159 ≈ 3.14`


class Unparsable(Exception):
    """The answer cannot be read as mathematics."""


def grade_pair(gold: str, answer: str, options: Options) -> Outcome:
    """The outcome of an answer. Raises UnreadableGold or MemoryError, or runs until the worker's time limit ends it."""
    gold, answer = notation.normalize(gold), notation.normalize(answer)
    if parse(notation.split_top(gold, "=")[-1]) is None:
        _, items = notation.bracketed(notation.labelled(notation.without_range(gold))[1])
        if not all(item and parse(read_quantity(item, True).value) is not None for item in items):
            raise UnreadableGold(gold)
    try:
        return "correct" if _same(gold, answer, options) else "incorrect"
    except Unparsable:
        return "unparsable"


# ---- items and brackets ---------------------------------------------------------------------------------------------

_SYMBOL = (
    r"(?:[A-Za-z]|\\(?:text ?\{ ?[\w ]+ ?\}|overline ?\{ ?[A-Z]{2} ?\}|[a-zA-Z]+))"
    r"(?: ?_ ?(?:\w|\\?[a-z]+|\{[^{}]*\}))?"
)
_FUNCTION = r"[f-h](?: ?\^ ?\{ ?(?:-1|\\prime) ?\})? ?\((?:[^()=]*|[f-h] ?\([^()=]*\))\)"
_NAME = re.compile(rf"{_SYMBOL}(?: ?\([^()=]*\))?|{_FUNCTION}|{_SYMBOL}(?: ?: ?{_SYMBOL})+")
_WORDS = re.compile(r"[a-z]{2,}[a-z\d ]*")
_TIME = re.compile(r"0?(\d{1,2}:[0-5]\d(?::(?!00)[0-5]\d)?)(?::00)?([ap]m)?", re.IGNORECASE)
_SPACES = re.compile(r"\s|\\text|[{}.]")
_NAMED_LIST = re.compile(rf"(?P<name>{_SYMBOL}|\([^()=]*\)) ?= ?(?P<items>[^=]*)")


def _same(gold: str, answer: str, options: Options) -> bool:
    """Whether a normalized answer, a single one or a collection, is the same as the gold answer."""
    gold, answer = notation.without_range(gold), notation.without_range(answer)
    if gold == answer or _same_words(gold, answer) or notation.same_option(gold, answer):
        return True
    (label, value), (given_label, given) = notation.labelled(gold), notation.labelled(answer)
    if not (label and given_label):
        gold, answer = value, given
    if notation.bases(gold) != notation.bases(answer):
        return False
    if time := _TIME.fullmatch(_SPACES.sub("", gold)):
        # Not as a ratio: 12:30 is not 2:5. The answer may leave out a.m. and p.m.
        given_time = _TIME.fullmatch(_SPACES.sub("", answer))
        return given_time is not None and given_time[1] == time[1] and given_time[2] in (None, time[2])
    if not options.list_answer or ", " in gold:
        gold = notation.without_thousands(gold)
    if not options.list_answer or ", " in answer or "," not in gold:
        answer = notation.without_thousands(answer)
    (brackets, golds), (given_brackets, answers) = (notation.bracketed(_MEMBER.sub("", t)) for t in (gold, answer))
    if _SETS.search(gold + answer) and (len(golds) == len(answers) == 1 or brackets or given_brackets):
        return _same_sets(gold, answer)
    if len(golds) == len(answers) == 1 and brackets == given_brackets == "":
        return _same_value(golds[0], answers[0], options)
    return _same_items(_collection(gold, brackets, golds), _collection(answer, given_brackets, answers), options)


def _same_words(gold: str, answer: str) -> bool:
    r"""Whether two texts are the same words, case and a final stop apart: `\text{June 20.}`, `June 20`."""
    words, given = plain = [notation.plain(text).removesuffix(".").strip() for text in (gold, answer)]
    if words.casefold() != given.casefold() or not _WORDS.fullmatch(words.casefold()):
        return False
    first = [text.partition(" ")[0] for text in plain]
    return "\\text" in gold + answer or any(notation.is_word(w, True) and not w.isupper() for w in first)


def _collection(text: str, brackets: str, items: list[str]) -> tuple[str, str, list[str], dict[str, str]]:
    """The name of a list (`x = 1, 2`), its brackets and items, and its values by name if all items have one."""
    name = ""
    if match := _NAMED_LIST.fullmatch(text):
        name, (brackets, items) = match["name"], notation.bracketed(match["items"])
    sides = [notation.split_top(item, "=") for item in items]
    named = {pair[0]: pair[-1] for pair in sides if len(pair) == 2 and _is_name(pair[0])}
    if name.startswith("(") and len(names := notation.split_items(name[1:-1])) == len(items):
        named, name = dict(zip(names, items, strict=True)), ""
    return name, brackets, items, named if len(named) == len(items) > 1 else {}


def _same_items(gold: Any, answer: Any, options: Options) -> bool:
    """Whether two collections are the same. Order matters unless the gold answer is a set or has no brackets."""
    name, brackets, golds, expected = gold
    given_name, given_brackets, answers, actual = answer
    if len(golds) != len(answers) or (name and given_name and name != given_name) or (expected and given_name):
        return False
    same = functools.partial(_same_item, options=options)
    if expected and actual:
        return expected.keys() == actual.keys() and all(same(expected[n], actual[n]) for n in expected)
    if expected and not any("=" in item for item in answers):
        golds, brackets = [*expected.values()], "()"  # values without names are in the order of the names
    if actual and brackets:
        answers, given_brackets = [*actual.values()], brackets
    kinds = {brackets, given_brackets} - {""}
    if "{}" in kinds or not kinds:
        return len(kinds) < 2 and matched(golds, answers, same)
    # An interval needs its brackets.
    return len(kinds) == 1 and (kinds == {"()"} or brackets == given_brackets) and all(map(same, golds, answers))


def _same_item(gold: str, answer: str, options: Options) -> bool:
    """Whether an item is the same; {1} differs from {{1}}."""
    is_set, given_is_set = (item.startswith(("\\{", "\\emptyset")) for item in (gold, answer))
    try:
        return is_set == given_is_set and bool(gold and answer) and _same(gold, answer, options)
    except Unparsable:
        return False


# An inequality sign, or other notation of sets of numbers, without an environment such as cases.
_SETS = re.compile(rf"^(?!.*\\begin).*(?:{notation.RELATION.pattern}|\\(?:cup|cap|setminus|mathbb|emptyset|infty))")
_MEMBER = re.compile(r"^[A-Za-z](?:_\w)?(?:\([A-Za-z]\))? ?\\in(?![a-zA-Z]) ?")
_BUILDER = re.compile(r"\\\{[^|:<>]*?(?:\||\\mid(?![a-zA-Z])|:)(?P<condition>[^|]*)\\\}")
_CLOSED_AT_INFINITY = re.compile(r"\\infty ?\]|\[ ?-? ?\\infty")


def _same_sets(gold: str, answer: str) -> bool:
    r"""Whether two texts are the same set of real numbers (`0 \le x < 5` and `[0,5)`), or the same inequality."""
    first, second = _real_set(gold), _real_set(answer)
    if not (first and second):
        return _same_relations(parse(gold), parse(answer))
    same_name = len({first[0], second[0]} - {""}) < 2
    return same_name and bool(first[1] == second[1] or (first[1] ^ second[1]).is_empty)


def _real_set(text: str) -> tuple[str, Any] | None:
    """The name of the variable, "" if there is none, and the set of real numbers that ``text`` describes, or None."""
    if (match := _BUILDER.fullmatch(text)) and notation.RELATION.search(match["condition"]):
        text = match["condition"].strip()
    for word, combine in ((r"\\lor(?![a-zA-Z])", sympy.Union), (r"\\land(?![a-zA-Z])", sympy.Intersection)):
        parts = notation.split_top(text, word)
        if len(parts) > 1:
            sets = [one for part in parts if (one := _real_set(part))]
            same_name = len(sets) == len(parts) and len({name for name, _ in sets}) == 1
            return (sets[0][0], combine(*(numbers for _, numbers in sets))) if same_name else None
    value, name = None if _CLOSED_AT_INFINITY.search(text) else parse(_MEMBER.sub("", text)), ""
    try:
        if isinstance(value, (Relational, And)):
            (unknown,) = value.free_symbols
            name, value = str(unknown), value.subs(unknown, sympy.Symbol("x", real=True)).as_set()
        if isinstance(value, sympy.Set) and not value.free_symbols:
            return name, sympy.nsimplify(value, rational=True) if value.has(sympy.Float) else value
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        pass
    return None


def _same_relations(gold: Any, answer: Any) -> bool:
    """Whether two relations, or chains of them, are equivalent: one is a multiple of the other, positive for `<`."""
    if isinstance(gold, And) and isinstance(answer, And):
        return matched(gold.args, answer.args, _same_relations)
    if not (isinstance(gold, Relational) and isinstance(answer, Relational)):
        return False
    answer = renamed(gold, answer)
    if not all(isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return bool(gold == answer)
    if gold.rel_op.replace(">", "<") != answer.rel_op.replace(">", "<"):
        return False
    a, b = (r.gts - r.lts if hasattr(r, "gts") else sympy.together(r.lhs - r.rhs) for r in (gold, answer))
    is_equation = isinstance(gold, sympy.Eq)
    if is_equation:
        a, b = (sympy.fraction(difference)[0] for difference in (a, b))
    ratio = sympy.simplify(a / b)
    return bool(ratio.is_number and ratio.is_finite and ratio != 0 and (is_equation or ratio.is_positive))


# ---- single values --------------------------------------------------------------------------------------------------


def _same_value(gold: str, answer: str, options: Options) -> bool:
    """Whether two single values, or equations, are the same."""
    golds, answers = _sides(gold) or ("", gold), _sides(answer)
    if answers is None:
        return False
    (name, value), (given_name, given) = golds, answers
    if name and given_name and (name != given_name or not _is_name(name)):
        return _same_relations(*(parse(f"{left} = {right}") for left, right in (golds, answers)))
    if name and not given_name and not _is_name(name):
        return False  # an equation is not its right side
    if given_name and not name and not _is_name(given_name):
        # A sum or product of letters may be what a problem with a number as gold answer asks for: `m + n = 5`.
        asked = parse(given_name)
        is_formula = isinstance(asked, sympy.Expr) and len(asked.free_symbols) > 1
        if asked is not None and not (is_formula and is_number(parse(value))):
            return False
    return _same_quantity(value, given, options)


def _sides(text: str) -> tuple[str, str] | None:
    """A value as ("", value), an equation as (left, right); None if the equation, or a part of a chain, is false.

    `x = 1 + 1 = 2` gives the name and the last value, `\\sqrt 2 ≈ 1.41` the value before the sign.
    """
    first, _, rounding = text.partition(notation.APPROXIMATELY)
    if rounding and _is_name(first.strip()):
        first = f"{first}= {rounding}"
    elif rounding:
        exact, rounded = _value(notation.split_top(first, "=")[-1]), _value(rounding.strip())
        if not (is_number(exact) and is_number(rounded) and equal(exact, rounded, ROUNDING)):
            return None
    members, name = notation.split_top(first.strip(), "="), ""
    while len(members) > 1 and _is_name(members[0]):
        name = name or members[0]
        del members[0]
    if len(members) == 1:
        return name, members[0]
    values = [_value(member) for member in members]
    numbers = [is_number(value) for value in values]
    if not name and (not all(numbers) if len(members) == 2 else all(numbers[1:]) and not numbers[0]):
        name, values = members[0], values[1:]  # `m + n = 256 + 37 = 293`
    same = values[-1] is not None and all(value is not None and equal(values[-1], value) for value in values[:-1])
    return (name, members[-1]) if same else None


def _value(text: str) -> Any:
    """The value of a quantity without its unit, or None."""
    quantity = read_quantity(text, True)
    return parse(rf"\frac{{{quantity.value}}}{{100}}" if quantity.unit == PERCENT else quantity.value)


def _is_name(left: str) -> bool:
    """Whether the left side of an equation names a value: a symbol or f(x), but not π or e."""
    return _NAME.fullmatch(left) is not None and not is_number(parse(left))


def _is_asked_for(left: str, gold: str) -> bool:
    """Whether the left side of an answer such as `m + n = 5` can be what a problem with the gold answer 5 asks for."""
    value = parse(left)
    return value is None or (isinstance(value, sympy.Expr) and len(value.free_symbols) > 1 and is_number(parse(gold)))


def _same_quantity(gold_text: str, answer_text: str, options: Options) -> bool:
    """Whether two values, with their units where both have one, are the same."""
    if len(notation.split_top(gold_text, ":")) != len(notation.split_top(answer_text, ":")):
        return False  # a ratio and its quotient are not the same
    gold = read_quantity(gold_text, re.match(r"[-+]?[\d.,/]+ ", gold_text) is not None)
    answer = read_quantity(answer_text, is_number(parse(gold.value)))
    degrees, given_degrees = (q.unit == DEGREE or "^\\circ" in q.value for q in (gold, answer))
    if differ(gold, answer) and {gold.unit, answer.unit} != {DEGREE, RADIAN}:
        return False
    if {gold.unit, answer.unit} == {PERCENT, ""}:
        return _same_percentage(gold, answer, options)
    expected, actual = (q.value.replace("^\\circ", "") for q in (gold, answer))
    if degrees and not given_degrees and (answer.unit == RADIAN or (answer.unit == "" and "\\pi" in actual)):
        expected = rf"\frac{{\pi}}{{180}} \cdot ({expected})"
    elif given_degrees and not degrees and not options.degrees:
        actual = rf"\frac{{\pi}}{{180}} \cdot ({actual})"
    return _same_number(expected, actual, options)


def _same_percentage(gold: Quantity, answer: Quantity, options: Options) -> bool:
    """Whether a percentage and a number without a percent sign are the same: 10 or 0.1 for 10%, but not 2 for 200%."""
    if _same_number(gold.value, answer.value, options):
        return True
    percentage, number = (gold.value, answer.value) if gold.unit else (answer.value, gold.value)
    return not number.lstrip("-").isdecimal() and _same_number(number, rf"\frac{{{percentage}}}{{100}}", options)


def _same_number(gold: str, answer: str, options: Options) -> bool:
    a, b = notation.parse_number(notation.compact(gold)), notation.parse_number(notation.compact(answer))
    if a and b:
        return notation.agree(a, b, options)
    gold, answer = notation.spaced(gold, answer), notation.spaced(answer, gold)
    expected, actual = parse(gold), parse(answer)
    if len({"\\text{WORD" in notation.words_as_text(text) for text in (gold, answer)}) > 1:
        return False  # the product of a word and 0 is 0
    if expected is None:
        raise UnreadableGold(gold)
    if actual is None:
        raise Unparsable(answer)
    return equal(expected, actual, options)


# Fills the parser's and sympy's caches with what most answers need: workers that are forked later begin with them.
logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
for _pair in (
    (r"\frac{3\sqrt{2}}{5}", r"\frac{3}{5}\sqrt{2}"),
    (r"2x^2 - 3x + 7", r"7 + 2 x^{2} - 3x"),
    (r"1 + 2i", r"\frac{1}{2} - \frac{\sqrt{3}}{2} i"),
    (r"90^\circ", r"\frac{\pi}{4}"),
):
    grade_pair(*_pair, Options())
