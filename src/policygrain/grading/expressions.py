"""Expressions: LaTeX is read by math-verify's parser, and compared by values, math-verify and for positive variables.

Imported by workers only.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Collection
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import verify
from math_verify.parser import should_treat_as_complex
from sympy.core.function import AppliedUndef

from .grader import DEFAULT, Options
from .notation import FUNCTIONS, words_as_text

_NORMALIZATION = NormalizationConfig(basic_latex=False, malformed_operators=True, nits=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
# Notation that the parser does not read, or reads differently: `4.5e33`, `1./3`, `\frac\pi 2`.
_REWRITTEN = [
    (re.compile(r"(?<![\w.\\])([0-9]+\.?[0-9]*|\.[0-9]+)[eE]([-+]?[0-9]{1,3})(?!\w)"), r"\1 \\cdot 10^{\2}"),
    (re.compile(r"(?<=[0-9])\.(?=[/ }])"), ""),
    (re.compile(r"\^ ?\{? ?\\(?:top|intercal)(?![a-z]) ?\}?"), "^T"),
    (re.compile(r"\\text ?\{ ?([A-Za-z]|[0-9]+) ?\}"), r" \1 "),
    (re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\\[a-z]+|\b\w))\s+(\w)"), r"\\frac{\1\2}{\3}"),
    (re.compile(rf"(?<![A-Za-z\\{{])({FUNCTIONS})(?![A-Za-z}}])"), r"\\\1 "),
]
_GROUPS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]| \d)")  # `1 000 000`
POINTS = 4  # at which expressions with variables are compared
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
    text = _GROUPS.sub(lambda m: m[0].replace(" ", ""), text)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    try:
        if match := _CASES.fullmatch(text):
            return _piecewise(match["rows"])
        text = normalize_latex(text, _NORMALIZATION)
        if _UNREADABLE.search(text):
            return None
        text = words_as_text(text)
        is_real = not should_treat_as_complex(text)
        found = latex2sympy(text, is_real=is_real, normalization_config=None, conversion_config=_CONVERSION)
        found = found.doit().as_explicit() if isinstance(found, sympy.MatrixExpr) else found
        # The parser reads i as a variable.
        units = [symbol for symbol in getattr(found, "free_symbols", ()) if symbol.name == "i"]
        return found.subs(dict.fromkeys(units, sympy.I)) if units else found
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

    Expressions with variables are equal if they have the same values at random positive points, and where one variable
    is negative if all is real there: `\sqrt{1/n}` is `1/\sqrt n`, but `\sqrt{x^2}` is not `x`. A variable that is
    under a root together with others is a positive quantity: `\sqrt{a^2 b}` is `a\sqrt b`.
    """
    given = renamed(gold, given)
    if isinstance(gold, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        return gold.shape == given.shape and all(equal(a, b, options) for a, b in zip(gold, given, strict=True))
    if not (isinstance(gold, sympy.Expr) and isinstance(given, sympy.Expr)):
        return bool(gold == given)
    # Single letters are variables: case matters, and E is not e. Longer names are words.
    letters = [str(one) for one in (gold, given) if one is sympy.E or getattr(one, "is_Symbol", False)]
    if len(letters) == 2 and min(map(len, letters)) == 1:
        return letters[0] == letters[1] and type(gold) is type(given)
    if gold.is_Piecewise and given.is_Piecewise:
        return matched(gold.args, given.args, lambda a, b: a[1] == b[1] and equal(a[0], b[0]))
    variables = gold.free_symbols
    values: list[Any] = [evaluated([gold, given], point) for point in range(POINTS if variables else 1)]
    if variables != given.free_symbols or None in values:
        return verify(gold, given, timeout_seconds=None)
    if not variables and options.within_tolerance(*values[0]):
        return True
    # Checked before the exact comparison, which takes longest for different numbers, and because math-verify accepts
    # numbers that are equal to six decimals, such as 2^{-30} and 2^{-40}.
    if not all(_close(pair, 1e-9 if variables else 1e-5) for pair in values):
        return False
    if not variables or gold.has(sympy.floor, sympy.ceiling):
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


def renamed(gold: Any, given: Any) -> Any:
    """``given`` with the variables of ``gold`` of the same name: the parser may assume that they are real, or not."""
    known = {symbol.name: symbol for symbol in getattr(gold, "free_symbols", ())}
    names = {s: known[s.name] for s in getattr(given, "free_symbols", ()) if known.get(s.name, s) != s}
    return given.subs(names) if names else given


def evaluated(expressions: list[Any], point: int, negative: Collection[Any] = ()) -> list[Any] | None:
    """The values of expressions at random values of their variables, or None if one cannot be evaluated.

    ``point`` is the seed of the variables' values, which are positive but for ``negative`` ones.
    """
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    draw = random.Random(point)
    numbers = {n: sympy.Rational((-1) ** (n in negative) * draw.randrange(5_000, 12_000), 4211) for n in names}
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
