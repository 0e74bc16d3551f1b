"""Parsing of LaTeX by math-verify's parser. Imported by workers only."""

from __future__ import annotations

import functools
import re
from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy, latex2sympy2
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.parser import should_treat_as_complex

_NORMALIZATION = NormalizationConfig(basic_latex=False, malformed_operators=True, nits=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
# Notation that the parser does not read, or reads differently: `4.5e33`, `1./3`, `\frac\pi 2`.
_REWRITTEN = [
    (re.compile(r"(?<![\w.\\])([0-9]+\.?[0-9]*|\.[0-9]+)[eE]([-+]?[0-9]{1,3})(?!\w)"), r"\1 \\cdot 10^{\2}"),
    (re.compile(r"(?<=[0-9])\.(?=[/ }])"), ""),
    (re.compile(r"\\text ?\{ ?([A-Za-z]|[0-9]+) ?\}"), r" \1 "),
    (re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\\[a-z]+|\b\w))\s+(\w)"), r"\\frac{\1\2}{\3}"),
]
_GROUPS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]| \d)")  # `1 000 000`
# Numbers side by side, which the parser adds: `2 3` and `2{3}` are 5 to it.
_SEPARATE_DIGITS = re.compile(
    r"\d\s+[\d.](?!\d*\s*/)|(?<![\d.])(?<![_^])\d[\d.]*\s*\{\s*\d|(?:^|[\s(=,+*/-])\{[\d.]+\}\s*\{?\d"
)
_DROPPED = re.compile(r"['\"]")  # what the parser leaves out without an error


@functools.lru_cache(maxsize=10_000)
def parse(text: str) -> Any:
    """The sympy expression of a normalized ``text`` in LaTeX, or None. Unclosed braces are closed."""
    text += "}" * (text.count("{") - text.count("}"))
    text = _GROUPS.sub(lambda m: m[0].replace(" ", ""), text)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    try:
        text = normalize_latex(text, _NORMALIZATION)
        if _SEPARATE_DIGITS.search(text) or _DROPPED.search(text):
            return None
        found = latex2sympy(
            text,
            is_real=not should_treat_as_complex(text),
            normalization_config=None,
            conversion_config=_CONVERSION,
        )
        return _with_imaginary_unit(found)
    except MemoryError:
        raise
    except Exception:  # the parser raises errors of every class, RecursionError included
        return None


def _with_imaginary_unit(expression: Any) -> Any:
    """``expression`` with the symbol i as the imaginary unit, which the parser takes for a variable."""
    units = [s for s in getattr(expression, "free_symbols", ()) if s.name == "i"]
    return expression.subs(dict.fromkeys(units, sympy.I)) if units else expression


def parse_in_two_stages() -> None:
    """Make ANTLR try its fast prediction first, which gives the right tree or an error, and then the full one."""
    parser = latex2sympy2._Latex2Sympy
    create, full = parser.create_parser, parser.parse

    def create_fast(self: Any, text: str) -> Any:
        made = create(self, text)
        made._interp.predictionMode = PredictionMode.SLL
        return made

    def parse_fast_first(self: Any, text: str) -> Any:
        self.create_parser = functools.partial(create_fast, self)
        try:
            return full(self, text)
        except Exception:
            # Reset the state that the first stage may have changed.
            self.variances, self.var = {}, {}
            del self.create_parser
            return full(self, text)

    parser.parse = parse_fast_first


# Answers of every common form. Parsing them once fills the parser's tables, which is nine tenths of its first work.
PAIRS = [
    (r"\frac{3\sqrt{2}}{5}", r"\frac{3}{5}\sqrt{2}"),
    (r"\left(3, \frac{\pi}{2}\right)", r"(3, \pi/2)"),
    (r"2x^2 - 3x + 7", r"7 + 2 x^{2} - 3x"),
    (r"[-2, 7) \cup (8, \infty)", r"(-\infty, 2] \cup [3, 5] \cup \{9\}"),
    (r"1 + 2i", r"\frac{1}{2} - \frac{\sqrt{3}}{2} i"),
    (r"\begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix}", r"\begin{pmatrix} 1 & -2 \\ \frac{1}{3} & 4 \end{pmatrix}"),
    (r"90^\circ", r"\frac{\pi}{4}"),
    (r"10\%", r"0.1"),
    (r"y = 2x + 3", r"y = -\frac{1}{2}x - 3"),
    (r"x^2 + y^2 - 6x + 9 = 0", r"(x-1)^2 + y^2 = 1"),
    (r"\text{Monday}", r"\text{even}"),
    (r"3, 5, \frac{7}{2}", r"\frac{7}{2}, 3, 5"),
    (r"(2,3),(4,5)", r"(2,3),(-4,5)"),
    (r"e^{-2t} + C_{1} \sin(3t)", r"e^{2t} + \cos(t)"),
    (r"\log_2 10 + \ln 3", r"\binom{n}{2} + 5!"),
    (r"a_1 + \sqrt[3]{4} \cdot 2^{n+1}", r"(n-1)(n+1)"),
    (r"\frac{n(n+1)}{2}", r"\dfrac{n^2+n}{2}"),
    (r"f(x) = x + 1", r"f(x) = c x^{n}"),
    (r"0 < x \le 5", r"x \ge -3"),
    (r"\{1, 2, 3\}", r"-\frac{1}{2}"),
    (r"12.5 \times 10^{-3}", r"|x - 2|"),
    (r"1 \pm \sqrt{5}", r"5\text{ cm}"),
    (r"(x-3)(x+5)(x^2+x+1)", r"(a+b)(c-2)^{2}"),
    (r"-2x^3 + 4x^2 - x - 9", r"x^{6}+2 x^{5}-7 x+1"),
    (r"\frac{x+2}{x-7}", r"\frac{2 x^{2}-1}{(x+1)(x-1)}"),
    (r"\frac{-3+\sqrt{17}}{4}", r"\frac{1-\sqrt{5}}{2}, \frac{1+\sqrt{5}}{2}"),
    (r"6 + 9\pi", r"16\pi - 8\sqrt{3}"),
    (r"\frac{\pi}{6}, \frac{5\pi}{6}", r"\frac{2}{3}\pi + 2\pi k"),
    (r"\left( -\frac{1}{2}, \frac{7}{3}, 4 \right)", r"(-1,2,\sqrt{2})"),
    (r"\left[ -\frac{3}{2}, \infty \right)", r"\left(-\infty, \frac{1}{2}\right)"),
    (r"2\sqrt{3} + 3\sqrt{2}", r"\sqrt{10 + 2\sqrt{5}}"),
    (r"5\sqrt[3]{2}", r"2^{\frac{1}{3}}"),
    (r"3^{2019} - 2^{2019}", r"\frac{4^{50} - 1}{3}"),
    (r"2^{n} - 1", r"2^{n-1} + n - 2"),
    (r"1 - \left(\frac{2}{3}\right)^{10}", r"\left(\frac{1}{4}\right)^{n}"),
    (r"\binom{20}{7}", r"\binom{2n}{n} - \binom{2n}{n-1}"),
    (r"\frac{(2n)!}{n! \cdot 2^n}", r"n!(n+1)!"),
    (r"\lfloor \frac{n}{2} \rfloor", r"\left\lceil \frac{n+1}{3} \right\rceil"),
    (r"\sin \theta \cos \theta", r"\tan^2 x + \sec^2 x"),
    (r"\sin 2x", r"\cos \left( \frac{\pi}{7} \right)"),
    (r"\arctan \frac{1}{3}", r"\arcsin(0.4)"),
    (r"\log_{3} 7", r"\ln(x+1) - \log 2"),
    (r"e^{i \pi / 3}", r"e^{-a t} \cos(\omega t)"),
    (r"\frac{1}{2} a b \sin C", r"2 \pi r h"),
    (r"\frac{m v^{2}}{r}", r"\sqrt{\frac{2 G M}{R}}"),
    (r"v_{0} t - \frac{1}{2} g t^{2}", r"\frac{k q_{1} q_{2}}{r^{2}}"),
    (r"\alpha + \beta - \gamma", r"\frac{\lambda}{1-\mu}"),
    (r"x = 3, y = -2", r"(x, y) = (3, -2)"),
    (r"x = -1 \text{ or } x = 4", r"a=2, b=5"),
    (r"x \in [1, 4]", r"1 \leq x < 7"),
    (r"n \ge 3", r"k > \frac{1}{2}"),
    (r"120 \text{ square units}", r"\$5.50"),
    (r"45_{8}", r"101101_2"),
    (r"\sum_{k=1}^{n} k^2", r"\prod_{i=1}^{n} (2i-1)"),
    (r"\int_0^1 x^2 dx", r"\frac{d y}{d x} = 2 y"),
    (r"7:3", r"\frac{5}{12}:1"),
    (r"3x + 4y - z - 12 = 0", r"\frac{x^2}{9} + \frac{y^2}{16} = 1"),
    (r"\begin{pmatrix} 1 & 0 & 2 \\ 0 & 1 & 0 \\ -1 & 0 & 3 \end{pmatrix}", r"\begin{bmatrix} 0 \\ 1 \end{bmatrix}"),
    (r"p^{2} q - p q^{2}", r"a^{2}+b^{2}+c^{2}-a b-b c-c a"),
    (r"1,234,567", r"0.\overline{36}"),
    (r"\max(a, b)", r"\gcd(m, n) = 1"),
    (r"P(x) = x^3 - 2x", r"f(n) = n + 1, f(n) = 2 - n"),
    (r"\mathbb{R}", r"\emptyset"),
    (r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"\frac{a\sqrt{b}}{c+d}"),
    (r"4(x+3)^2 - 5", r"-\left(x - \frac{1}{2}\right)\left(x + \frac{1}{2}\right)"),
    (r"\frac{1}{1+\frac{1}{x}}", r"\frac{\frac{1}{2}+x}{3}"),
]
