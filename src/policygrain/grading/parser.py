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
