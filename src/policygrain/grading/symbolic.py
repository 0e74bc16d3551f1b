"""Grading of one answer by computer algebra, in workers. math-verify's parser reads the values.

What it would accept wrongly is rejected before: different items, brackets, names, units, bases, words, false equations.
"""

from __future__ import annotations

import functools
import logging
import random
import re
from collections.abc import Callable, Collection
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.logic.boolalg import And

from . import notation
from .grader import DEFAULT, Options, Outcome, UnreadableGold
from .units import DEGREE, PERCENT, RADIAN, UNITS_OF_ANY_KIND, read_quantity

ROUNDING = Options(relative_tolerance=0.01)  # of a value and its rounding in `3.14159 ≈ 3.14`


class Unparsable(Exception):
    """The answer cannot be read as mathematics."""


def grade_pair(gold: str, answer: str, options: Options) -> Outcome:
    """The outcome of an answer. Raises UnreadableGold or MemoryError, or runs until a time limit ends the worker."""
    gold, answer = notation.normalize(gold), notation.normalize(answer)
    if parse(notation.split_top(gold, "=")[-1]) is None and not _real_set(gold):
        _, items = notation.bracketed(notation.labelled(notation.without_range(gold))[1])
        if not all(item and parse(read_quantity(item, True)[0]) is not None for item in items):
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
_TIME = re.compile(r"0?(\d{1,2}:[0-5]\d(?::(?!00)[0-5]\d)?)(?::00)?([ap]m)?", re.IGNORECASE)
_SPACES = re.compile(r"\s|\\text|[{}.]")
_NAMED_LIST = re.compile(rf"(?P<name>{_SYMBOL}|\([^()=]*\)) ?= ?(?P<items>[^=]*)")


def _same(gold: str, answer: str, options: Options) -> bool:
    """Whether a normalized answer, a single one or a collection, is the same as the gold answer."""
    gold, answer = notation.without_range(gold), notation.without_range(answer)
    if gold == answer or notation.same_option(gold, answer):
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
    if not options.list_answer or re.search("[,;] ", gold):
        gold = notation.without_thousands(gold)
    if not options.list_answer or re.search("[,;] ", answer) or "," not in gold:
        answer = notation.without_thousands(answer)
    (brackets, golds), (given_brackets, answers) = (notation.bracketed(_MEMBER.sub("", t)) for t in (gold, answer))
    if _SETS.search(gold + answer) and (len(golds) == len(answers) == 1 or brackets or given_brackets):
        first, second = _real_set(gold), _real_set(answer)
        if not (first and second):
            return _same_relations(parse(gold), parse(answer))
        (name, numbers), (other_name, others) = first, second
        return len({name, other_name} - {""}) < 2 and bool(numbers == others or (numbers ^ others).is_empty)
    if len(golds) == len(answers) == 1 and brackets == given_brackets == "":
        return _same_value(golds[0], answers[0], options)
    return _same_items(_collection(gold, brackets, golds), _collection(answer, given_brackets, answers), options)


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
        return len(kinds) < 2 and notation.matched(golds, answers, same)
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
_CLOSED_AT_INFINITY = re.compile(r"\\infty ?\]|\[ ?-? ?\\infty")


def _real_set(text: str) -> tuple[str, Any] | None:
    r"""The name of the variable, or "", and the set of real numbers that ``text`` describes: `0 \le x < 5`; or None."""
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
        return notation.matched(gold.args, answer.args, _same_relations)
    if not (isinstance(gold, Relational) and isinstance(answer, Relational)):
        return False
    if not all(isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return bool(gold == answer)
    if gold.rel_op.replace(">", "<") != answer.rel_op.replace(">", "<"):
        return False
    has_order = hasattr(gold, "gts")
    a, b = (r.gts - r.lts if has_order else sympy.fraction(sympy.together(r.lhs - r.rhs))[0] for r in (gold, answer))
    ratio = sympy.simplify(a / b)
    return bool(ratio.is_number and ratio.is_finite and (ratio.is_positive if has_order else ratio != 0))


# ---- single values --------------------------------------------------------------------------------------------------


def _same_value(gold: str, answer: str, options: Options) -> bool:
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
    """A value as ("", value), an equation as (left, right), of a chain the last value; None if it is false."""
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
    value, unit = read_quantity(text, True)
    return parse(rf"\frac{{{value}}}{{100}}" if unit == PERCENT else value)


def _is_name(left: str) -> bool:
    """Whether the left side of an equation names a value: a symbol or f(x), but not π or e."""
    return _NAME.fullmatch(left) is not None and not is_number(parse(left))


def _same_quantity(gold_text: str, answer_text: str, options: Options) -> bool:
    """Whether two values, with their units where both have one, are the same."""
    if len(notation.split_top(gold_text, ":")) != len(notation.split_top(answer_text, ":")):
        return False  # a ratio and its quotient are not the same
    gold, unit = read_quantity(gold_text, re.match(r"[-+]?[\d.,/]+ ", gold_text) is not None)
    answer, given_unit = read_quantity(answer_text, is_number(parse(gold)))
    units = {unit, given_unit} - {""}
    if len(units) > 1 and units != {DEGREE, RADIAN} and not (UNITS_OF_ANY_KIND in units and PERCENT not in units):
        return False
    degrees, given_degrees = unit == DEGREE or "^\\circ" in gold, given_unit == DEGREE or "^\\circ" in answer
    gold, answer = gold.replace("^\\circ", ""), answer.replace("^\\circ", "")
    if units == {PERCENT} and unit != given_unit:
        if _same_number(gold, answer, options):
            return True
        # The number may be a share, too, but a whole number is none: 2 is not 200%.
        percentage, number = (gold, answer) if unit else (answer, gold)
        return not number.lstrip("-").isdecimal() and _same_number(number, rf"\frac{{{percentage}}}{{100}}", options)
    if degrees and not given_degrees and (given_unit == RADIAN or (given_unit == "" and "\\pi" in answer)):
        gold = rf"\frac{{\pi}}{{180}} \cdot ({gold})"
    elif given_degrees and not degrees and not options.degrees:
        answer = rf"\frac{{\pi}}{{180}} \cdot ({answer})"
    return _same_number(gold, answer, options)


def _same_number(gold: str, answer: str, options: Options) -> bool:
    same = notation.same_number(notation.compact(gold), notation.compact(answer), options)
    if same is not None:
        return same
    expected, actual = parse(gold), parse(answer)
    if len({"\\text{WORD" in notation.words_as_text(text) for text in (gold, answer)}) > 1:
        return False  # the product of a word and 0 is 0
    if expected is None:
        raise UnreadableGold(gold)
    if actual is None:
        raise Unparsable(answer)
    return equal(expected, actual, options)


# ---- expressions ----------------------------------------------------------------------------------------------------

_NORMALIZATION = NormalizationConfig(basic_latex=False, malformed_operators=True, nits=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
# Of letters, for which the parser has 1 and their product: a function Ψ that nobody defines, and lcm by it.
_LETTERS = r"(?=[^()]*(?<![\\a-zA-Z])[A-Za-z])(?:[^()]|\([^()]*\))*?"
_DIVISOR = re.compile(rf"\\(?:operatorname ?\{{ ?)?(gcd|lcm)(?: ?\}})? ?\( ?({_LETTERS}) ?\)")


def _by_divisor(match: re.Match[str]) -> str:
    product = "".join(f"({one})" for one in notation.split_items(match[2]))
    return rf"\Psi({match[2]})" if match[1] == "gcd" else rf"\frac{{{product}}}{{\Psi({match[2]})}}"


# Notation that the parser does not read, or reads differently: `1 000 000`, `4.5e33`, `1./3`, `\frac\pi 2`.
_REWRITTEN: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]| \d)"), lambda match: match[0].replace(" ", "")),
    (_DIVISOR, _by_divisor),
    *((re.compile(pattern), replacement) for pattern, replacement in notation.TABLES["parsed"]),
    (re.compile(rf"(?<![A-Za-z\\{{])({notation.FUNCTIONS})(?![A-Za-z}}])"), r"\\\1 "),
]
_NOT_BY_VALUES = (sympy.floor, sympy.ceiling, sympy.re, sympy.im, sympy.conjugate, sympy.arg)  # at a few points
# What the parser ignores (quotes) or adds: it reads `2 3` and `2{3}` as 5.
_UNREADABLE = re.compile(
    r"\d\s+[\d.](?!\d*\s*/)|(?<![\d.])(?<![_^])\d[\d.]*\s*\{\s*\d|(?:^|[\s(=,+*/-])\{[\d.]+\}\s*\{?\d|['\"]"
)
_CASES = re.compile(r"\\begin ?\{cases\}(?P<rows>.*)\\end ?\{cases\}")
_CONDITION = re.compile(r"\\text ?\{ ?(?:if|when|for)? ?(?=[^{}]*\})|\}|\b(?:if|when|for)\b")


@functools.lru_cache(maxsize=10_000)
def parse(text: str) -> Any:
    """The sympy expression of a normalized ``text`` in LaTeX, or None. Unclosed braces are closed."""
    text += "}" * (text.count("{") - text.count("}"))
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    try:
        if match := _CASES.fullmatch(text):
            return _piecewise(match["rows"])
        text = normalize_latex(text, _NORMALIZATION)
        if _UNREADABLE.search(text):
            return None
        text = notation.words_as_text(text)
        found = latex2sympy(text, is_real=None, normalization_config=None, conversion_config=_CONVERSION)
        found = found.doit().as_explicit() if isinstance(found, sympy.MatrixExpr) else found
        if "\\Psi" in text:
            found = found.replace(lambda e: isinstance(e, AppliedUndef), lambda e: e.func(*sorted(e.args, key=str)))
        return found.subs(sympy.Symbol("i"), sympy.I)  # the parser reads i as a variable
    except MemoryError:
        raise
    except Exception:  # the parser raises errors of every class, RecursionError included
        return None


def _piecewise(rows: str) -> Any:
    r"""The value of the rows of `\begin{cases}`; a condition in words is a symbol."""
    pairs = []
    for row in filter(str.strip, rows.split("\\\\")):
        value, said = row.split("&")
        condition = parse(_CONDITION.sub("", said).strip(" ,.{}"))
        pairs.append((parse(value.strip(" ,")), str(condition) in ("WORDOTHERWISE", "WORDELSE") or condition))
    return sympy.Piecewise(*pairs, evaluate=False)


def equal(gold: Any, given: Any, options: Options = DEFAULT) -> bool:
    r"""Whether two expressions are equal, or numbers within a tolerance.

    With variables: if they have the same values at four random positive points, and where one variable is negative if
    all is real there (`\sqrt{x^2}` is not `x`) and no root has it together with others (`\sqrt{a^2 b}` is `a\sqrt b`).
    """
    if isinstance(gold, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        return gold.shape == given.shape and all(equal(a, b, options) for a, b in zip(gold, given, strict=True))
    if not (isinstance(gold, sympy.Expr) and isinstance(given, sympy.Expr)):
        return bool(gold == given)
    # Single letters are variables: case matters, and E is not e. Longer names are words.
    letters = [str(one) for one in (gold, given) if one is sympy.E or getattr(one, "is_Symbol", False)]
    if len(letters) == 2 and min(map(len, letters)) == 1:
        return letters[0] == letters[1] and type(gold) is type(given)
    if gold.is_Piecewise and given.is_Piecewise:
        return notation.matched(gold.args, given.args, lambda a, b: a[1] == b[1] and equal(a[0], b[0]))
    variables = gold.free_symbols
    for point in range(4 if variables else 1):
        values = evaluated([gold, given], point)
        if values is None or variables != given.free_symbols:
            return verify(gold, given, timeout_seconds=None)
        if not variables and options.within_tolerance(*values):
            return True
        # Checked before the exact comparison, which takes longest for different numbers, and because math-verify
        # accepts numbers that are equal to six decimals, such as 2^{-30} and 2^{-40}.
        if not _close(values, 1e-9 if variables else 1e-5):
            return False
    if not variables or gold.has(*_NOT_BY_VALUES) or given.has(*_NOT_BY_VALUES):
        return verify(gold, given, timeout_seconds=None)
    powers = [p for e in (gold, given) for p in e.atoms(sympy.Pow, sympy.log) if not p.args[-1].is_integer]
    together = set().union(*(p.free_symbols for p in powers if len(p.free_symbols) > 1))
    for variable in variables - together:
        changed = evaluated([gold, given, *powers], 0, {variable})
        if changed and all(value.is_real for value in changed) and not _close(changed, 1e-9):
            return False
    return True


def _close(values: list[Any], tolerance: float) -> bool:
    """Whether the first two values differ by at most this share of the larger one."""
    return bool(abs(values[0] - values[1]) <= tolerance * max(abs(values[0]), abs(values[1])))


def is_number(expression: Any) -> bool:
    """Whether an expression has no variables and no unknown functions: `f(2)` is not a number."""
    return isinstance(expression, sympy.Basic) and not expression.free_symbols and not expression.has(AppliedUndef)


def evaluated(expressions: list[Any], point: int, negative: Collection[Any] = ()) -> list[Any] | None:
    """The values at a random point, positive but for ``negative`` variables; None if one cannot be evaluated."""
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    draw = random.Random(point)
    numbers = {n: sympy.Rational((-1) ** (n in negative) * draw.randrange(5_000, 12_000), 4211) for n in names}
    try:
        # Strict: an error if cancellation leaves no digits, as in a sum of roots that is zero.
        values = [e.evalf(15, subs=numbers, strict=True) for e in expressions]
        parts = [part for value in values for part in value.as_real_imag()]
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError):
        return None
    return values if all(part.is_Number and part.is_finite for part in parts) else None


# Fills the parser's and sympy's caches with what most answers need: workers that are forked later begin with them.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its own timeouts are off
for _text in (r"\frac{3\sqrt{2}}{5}", "2x^2 - 3x + 7", r"1 - \frac{\sqrt{3}}{2} i", r"90^\circ", r"2\pi"):
    grade_pair(_text, f"0 + {_text}", Options())
