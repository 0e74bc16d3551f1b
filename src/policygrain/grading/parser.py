"""Reading of LaTeX by math-verify's parser. Imported by workers only."""

from __future__ import annotations

import functools
import re
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.parser import should_treat_as_complex

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
]
_REWRITTEN.append((re.compile(rf"(?<![A-Za-z\\{{])({FUNCTIONS})(?![A-Za-z}}])"), r"\\\1 "))
_GROUPS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]| \d)")  # `1 000 000`
# Adjacent numbers, which the parser adds: it reads `2 3` and `2{3}` as 5.
_SEPARATE_DIGITS = re.compile(
    r"\d\s+[\d.](?!\d*\s*/)|(?<![\d.])(?<![_^])\d[\d.]*\s*\{\s*\d|(?:^|[\s(=,+*/-])\{[\d.]+\}\s*\{?\d"
)
_CASES = re.compile(r"\\begin ?\{cases\}(?P<rows>.*)\\end ?\{cases\}")
_CONDITION = re.compile(r"\\text ?\{ ?(?:if|when|for)? ?(?=[^{}]*\})|\}|\b(?:if|when|for)\b")
_DROPPED = re.compile(r"['\"]")  # ignored by the parser without an error


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
        if _SEPARATE_DIGITS.search(text) or _DROPPED.search(text):
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


# Answers of common forms. The helper parses them once to fill the parser's tables, which all its children inherit; with
# only eleven pairs, an answer took a third longer.
PAIRS = [
    (r"\frac{3\sqrt{2}}{5}", r"\frac{3}{5}\sqrt{2}"),
    (r"2x^2 - 3x + 7", r"7 + 2 x^{2} - 3x"),
    (r"1 + 2i", r"\frac{1}{2} - \frac{\sqrt{3}}{2} i"),
    (r"90^\circ", r"\frac{\pi}{4}"),
    (r"y = 2x + 3", r"y = -\frac{1}{2}x - 3"),
    (r"\text{Monday}", r"\text{even}"),
    (r"(2,3),(4,5)", r"(2,3),(-4,5)"),
    (r"\log_2 10 + \ln 3", r"\binom{n}{2} + 5!"),
    (r"\frac{n(n+1)}{2}", r"\dfrac{n^2+n}{2}"),
    (r"0 < x \le 5", r"x \ge -3"),
    (r"12.5 \times 10^{-3}", r"|x - 2|"),
    (r"(x-3)(x+5)(x^2+x+1)", r"(a+b)(c-2)^{2}"),
    (r"\frac{x+2}{x-7}", r"\frac{2 x^{2}-1}{(x+1)(x-1)}"),
    (r"6 + 9\pi", r"16\pi - 8\sqrt{3}"),
    (r"\left( -\frac{1}{2}, \frac{7}{3}, 4 \right)", r"(-1,2,\sqrt{2})"),
    (r"2\sqrt{3} + 3\sqrt{2}", r"\sqrt{10 + 2\sqrt{5}}"),
    (r"3^{2019} - 2^{2019}", r"\frac{4^{50} - 1}{3}"),
    (r"1 - \left(\frac{2}{3}\right)^{10}", r"\left(\frac{1}{4}\right)^{n}"),
    (r"\frac{(2n)!}{n! \cdot 2^n}", r"n!(n+1)!"),
    (r"\sin \theta \cos \theta", r"\tan^2 x + \sec^2 x"),
    (r"\arctan \frac{1}{3}", r"\arcsin(0.4)"),
    (r"e^{i \pi / 3}", r"e^{-a t} \cos(\omega t)"),
    (r"\frac{m v^{2}}{r}", r"\sqrt{\frac{2 G M}{R}}"),
    (r"\alpha + \beta - \gamma", r"\frac{\lambda}{1-\mu}"),
    (r"x = -1 \text{ or } x = 4", r"a=2, b=5"),
    (r"n \ge 3", r"k > \frac{1}{2}"),
    (r"45_{8}", r"101101_2"),
    (r"\int_0^1 x^2 dx", r"\frac{d y}{d x} = 2 y"),
    (r"3x + 4y - z - 12 = 0", r"\frac{x^2}{9} + \frac{y^2}{16} = 1"),
    (r"p^{2} q - p q^{2}", r"a^{2}+b^{2}+c^{2}-a b-b c-c a"),
    (r"\max(a, b)", r"\gcd(m, n) = 1"),
    (r"\mathbb{R}", r"\emptyset"),
    (r"4(x+3)^2 - 5", r"-\left(x - \frac{1}{2}\right)\left(x + \frac{1}{2}\right)"),
]
