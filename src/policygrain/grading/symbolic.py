"""One answer against one gold answer, by math-verify. Runs in workers only: it may take any time and memory."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import replace
from itertools import chain
from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import verify
from math_verify.parser import parse_latex_cached

from .numbers import Options, unbraced
from .outcome import Outcome
from .warm_up import PAIRS

_LETTERS = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
_UNITS = replace(_LETTERS, units=True)
_UNIT = re.compile(r"\\(?:text|mbox|mathrm)")
# What math-verify does not read or reads differently, and how it does: `20,\!000`, `4.5e33`, `1./3`, `\left (`,
# `\frac\pi 2`.
_REWRITTEN = [
    (re.compile(r"(?<=[0-9])(?:,\\!|\{,\}|\\,)\s*(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile(r"(?<![\w.\\])([0-9]+\.?[0-9]*|\.[0-9]+)[eE]([-+]?[0-9]{1,3})(?!\w)"), r"\1 \\cdot 10^{\2}"),
    (re.compile(r"(?<=[0-9])\.(?=[/ }])"), ""),
    (re.compile(r"\\(left|right)\s+"), r"\\\1"),
    (re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\\[a-z]+|\b\w))\s+(\w)"), r"\\frac{\1\2}{\3}"),
]
_DISPLAY = re.compile(r"\A\\[\[(]((?:(?!\\[\[\]()]).)*)\\[\])]\Z", re.DOTALL)
_PERCENT = sympy.UnevaluatedExpr(sympy.Rational(1, 100))
_DIGITS = 15
_BITS = 3.3219  # in a decimal digit
_ENDLESS = 12  # digits of an exponent from which its size does not matter any more
_CLEARLY = 1e-5  # relative difference from which two values of 15 digits are not the same


class UnparsableGold(Exception):
    """The gold answer is no mathematics: a mistake of the dataset."""


def judge(gold: str, answer: str, options: Options) -> Outcome:
    """The outcome by mathematics alone. Raises UnparsableGold, MemoryError, or does not return."""
    expected = _gold(gold)
    if expected is None:
        raise UnparsableGold(gold)
    given = parsed(answer, _is_number(expected))
    if given is None:
        return "unparsable"
    if _endless(expected) or _endless(given):
        return "timeout"
    if _equal(expected, given, options):
        return "correct"
    if options.list_answer and _same_list(split(gold), split(answer), options):
        return "correct"
    return "incorrect"


@functools.lru_cache(maxsize=10_000)
def parsed(text: str, units: bool) -> Any:
    r"""The expression that ``text`` writes in LaTeX, or None.

    Units written as text (`5\text{ cm}`) are never part of it. With ``units``, nor are words and letters at its end
    that may be units, `5 cm` or `3 t`; it is math-verify's way to drop them always, and with them many a variable.
    Unclosed braces are closed: datasets have such answers.
    """
    text += "}" * (text.count("{") - text.count("}"))
    text = unbraced(_DISPLAY.sub(r"\1", text.strip())).rstrip(".,$ ")
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    for config in (_UNITS, _LETTERS) if units or _UNIT.search(text) else (_LETTERS, _UNITS):
        # What a parser of any text may raise is no news, deep recursion included.
        try:
            return parse_latex_cached(normalize_latex(text, config))
        except MemoryError:
            raise
        except Exception:
            continue
    return None


def _gold(text: str) -> Any:
    return parsed(text, units=_UNIT.search(text) is not None)


def _equal(gold: Any, given: Any, options: Options) -> bool:
    if _equations_differ(gold, given):
        return False
    values = _values(gold, given)
    if values:
        expected, value = values
        if options.close(expected, value):
            return True
        # A difference in value is proof. It comes first since simplifying what is not equal takes longest, and since
        # math-verify takes numbers for equal that are the same in six decimals: 2^{-30} and 2^{-40}.
        if _differ(expected, value):
            return False
        if gold.is_Symbol or given.is_Symbol:
            return bool(sympy.simplify(gold - given) == 0)  # math-verify compares names then
    return verify(gold, given, timeout_seconds=None)


def _differ(a: Any, b: Any) -> bool:
    return bool(abs(a - b) > _CLEARLY * max(abs(a), abs(b)))


def _equations_differ(gold: Any, given: Any) -> bool:
    """Whether two polynomial equations are clearly no multiples of each other; solving them would take long."""
    if not (isinstance(gold, sympy.Eq) and isinstance(given, sympy.Eq) and gold.free_symbols == given.free_symbols):
        return False
    if not all(isinstance(side, sympy.Expr) for e in (gold, given) for side in e.args):
        return False  # x = [1, 2]
    sides = [e.lhs - e.rhs for e in (gold, given)]
    if not all(side.is_polynomial(*gold.free_symbols) for side in sides):
        return False
    first, second = _evaluated(sides, 0), _evaluated(sides, 1)
    return bool(first and second) and _differ(first[0] * second[1], second[0] * first[1])  # type: ignore[index]


def _values(gold: Any, given: Any) -> list[Any] | None:
    """Values of two expressions, at a point where they have variables; None where that is not sure to be exact."""
    if isinstance(gold, sympy.Eq) and isinstance(given, sympy.Eq) and gold.lhs == given.lhs:
        gold, given = gold.rhs, given.rhs
    # 9\% may stand for 9.
    if not all(isinstance(e, sympy.Expr) and not e.has(_PERCENT) for e in (gold, given)):
        return None
    return _evaluated([gold, given]) if gold.free_symbols == given.free_symbols else None


def _evaluated(expressions: list[Any], point: int = 0) -> list[Any] | None:
    """Their values with the same number for each variable, others at another ``point``."""
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    numbers = {name: sympy.Rational(7919 + 1013 * i + 2741 * point, 4211) for i, name in enumerate(names)}
    try:
        # Strict: an error where cancellation leaves no digits, as in a sum of roots that is zero.
        values = [e.evalf(_DIGITS, subs=numbers, strict=True) for e in expressions]
        if all(part.is_Number and part.is_finite for value in values for part in value.as_real_imag()):
            return values
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError):
        pass
    return None


def _endless(expression: Any) -> bool:
    """Whether evaluating would not end: an exponent of more than 10,000 digits, a factorial of more than 100,000."""
    return any(
        (isinstance(node, sympy.Pow) and _digits(node.exp) > 10_000)
        or (isinstance(node, sympy.factorial) and _digits(node.args[0]) > 5)
        for node in sympy.preorder_traversal(expression)
    )


def _digits(expression: Any) -> float:
    """About the decimal digits before the point of a product, power or factorial of numbers; 0 of what is not one."""
    if isinstance(expression, sympy.Integer):
        return int(expression).bit_length() / _BITS
    arguments = [_digits(a) for a in getattr(expression, "args", ())]
    if isinstance(expression, sympy.Pow):
        return arguments[0] * 10 ** min(arguments[1], _ENDLESS)
    if isinstance(expression, sympy.factorial):
        return arguments[0] * 10 ** min(arguments[0], _ENDLESS)
    return sum(arguments)


def _is_number(expression: Any) -> bool:
    return not getattr(expression, "free_symbols", True)


def split(text: str) -> list[str]:
    """``text`` at its commas outside brackets, dollar signs left out."""
    parts, depth = [""], 0
    for character in text.replace("$", ""):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _same_list(golds: list[str], answers: list[str], options: Options) -> bool:
    """Whether each answer equals a gold answer of its own."""
    if len(golds) != len(answers) or len(golds) == 1:
        return False
    left = [parsed(a, False) for a in answers]
    for gold in map(_gold, golds):
        place = next(
            (i for i, a in enumerate(left) if gold is not None and a is not None and _equal(gold, a, options)), None
        )
        if place is None:
            return False
        del left[place]
    return True


def quicken() -> None:
    """Parse in ANTLR's two stages: fast prediction, which gives the right tree or an error, then the full one."""
    parser = latex2sympy2._Latex2Sympy
    create, full = parser.create_parser, parser.parse

    def fast(self: Any, text: str) -> Any:
        made = create(self, text)
        made._interp.predictionMode = PredictionMode.SLL
        return made

    def parse_in_stages(self: Any, text: str) -> Any:
        self.create_parser = functools.partial(fast, self)
        try:
            return full(self, text)
        except Exception:
            # As it was made: the first stage may have learnt variables.
            self.variances, self.var = {}, {}
            del self.create_parser
            return full(self, text)

    parser.parse = parse_in_stages


def warm_up() -> None:
    """Make the parser and sympy's caches ready for what most answers need, so that workers start with them."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    quicken()
    for text in chain.from_iterable(PAIRS):
        parsed(text, units=False)
    for gold, answer in PAIRS[:8]:
        judge(gold, answer, Options())
