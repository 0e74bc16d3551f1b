r"""Gold answers with right and wrong answers to them, computed from numbers.

Each kind draws numbers, writes a gold answer with them, the same value in other notation, and values that look alike:
the other side, a letter, another bracket, sign, order, unit or base, one element less or more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple


class Pair(NamedTuple):
    """A gold answer, an answer, and whether it is right."""

    kind: str
    gold: str
    answer: str
    right: bool


Answers = tuple[str, list[str], list[str]]  # the gold answer, right answers, wrong ones


def pairs(each: int = 5, seed: int = 0) -> list[Pair]:
    """Pairs of ``each`` gold answers of every kind, without repetitions."""
    draw = random.Random(seed)
    found: dict[Pair, None] = {}
    for make in KINDS:
        for _ in range(each):
            gold, right, wrong = make(draw)
            kind = make.__name__.replace("_", " ")
            found |= dict.fromkeys(Pair(kind, gold, answer, True) for answer in right)
            found |= dict.fromkeys(Pair(kind, gold, answer, False) for answer in wrong)
    return list(found)


def different(draw: random.Random, count: int, low: int = 2, high: int = 19) -> list[int]:
    """Different positive numbers."""
    return draw.sample(range(low, high + 1), count)


def terms(coefficients: list[int], letters: str) -> str:
    """A sum such as `3x - 2y + 5`; a space is the letter of a constant."""
    parts = [
        f"{'-' if c < 0 else '+'} {'' if abs(c) == 1 and n != ' ' else abs(c)}{n}"
        for c, n in zip(coefficients, letters, strict=True)
        if c
    ]
    text = " ".join(parts).replace(" ", "", 1).lstrip("+")
    return text.replace(" ", " ").strip()


# fmt: off
def line(draw: random.Random) -> Answers:
    a, b, c = different(draw, 3)
    b = -b
    gold = f"{terms([a, b, c], 'xy ')} = 0"
    right = [
        f"{terms([3 * a, 3 * b, 3 * c], 'xy ')} = 0", f"{terms([a, b], 'xy')} = -{c}",
        f"0 = {terms([c, a, b], ' xy')}", f"{a}x = {terms([-b, -c], 'y ')}", f"$${gold}$$"]
    wrong = ["0", "x", "y", str(c), f"-{c}", terms([a, b, c], "xy "), "0 = 0", "x = 0", "y = 0", f"{c} = {c}"]
    wrong += [f"{terms(other, 'xy ')} = 0" for other in ([a, -b, c], [a, b, -c], [a, b, c + 1], [b, a, c], [a, b, 0])]
    return gold, right, [*wrong, f"{terms([a, b, c], 'xz ')} = 0", f"{terms([a, b, c], 'xy ')} > 0", f"({a}, {b}, {c})"]


def plane(draw: random.Random) -> Answers:
    a, b, c, d = different(draw, 4)
    gold = f"{terms([a, -b, c, -d], 'xyz ')} = 0"
    right = [
        f"{terms([-a, b, -c, d], 'xyz ')} = 0", f"{terms([a, -b, c], 'xyz')} = {d}",
        f"{terms([c, a, -b], 'zxy')} = {d}"]
    wrong = [
        "0", "z", str(d), f"{d} = {d}", f"{terms([a, -b, c], 'xyz')}", f"({a}, -{b}, {c}, -{d})",
        f"{terms([a, -b, c], 'xyz')} = 0"]
    wrong += [
        f"{terms(other, 'xyz ')} = 0" for other in ([a, b, c, -d], [c, -b, a, -d], [a, -b, c, d], [a, -b, c, -d - 1])
    ]
    return gold, right, wrong


def conic(draw: random.Random) -> Answers:
    a, b = different(draw, 2)
    gold = rf"\frac{{x^2}}{{{a * a}}} + \frac{{y^2}}{{{b * b}}} = 1"
    right = [f"{b * b}x^2 + {a * a}y^2 = {a * a * b * b}", rf"1 = \frac{{y^2}}{{{b * b}}} + \frac{{x^2}}{{{a * a}}}"]
    wrong = [
        "1", "1 = 1", "x^2", rf"\frac{{x^2}}{{{a * a}}} - \frac{{y^2}}{{{b * b}}} = 1", gold.replace("= 1", "= 0"),
        gold.replace("= 1", "")]
    return gold, right, [*wrong, rf"\frac{{x^2}}{{{b * b}}} + \frac{{y^2}}{{{a * a}}} = 1", gold.replace("=", r"\le")]


def explicit_line(draw: random.Random) -> Answers:
    m, b = different(draw, 2)
    gold = f"y = {m}x - {b}"
    right = [
        f"{m}x - {b}", f"-{b} + {m}x", f"y = -{b} + {m}x", f"{m}x - y - {b} = 0", f"y + {b} = {m}x",
        f"{m}x - {b} = y"]
    wrong = [
        str(b), f"-{b}", f"{m}x", "y", "x", f"y = {m}x", f"x = {m}y - {b}", f"y = {m}x + {b}", f"y = -{m}x - {b}",
        f"y = {b}x - {m}"]
    return gold, right, [*wrong, f"({m}, -{b})", "y = y", f"y = {m}", rf"y \ge {m}x - {b}", f"z = {m}x - {b} + y"]


def named_value(draw: random.Random) -> Answers:
    n, m = different(draw, 2)
    gold = f"x = {n}"
    right = [str(n), f"{n} = x", f"x = {n - 1} + 1", rf"x = \frac{{{2 * n}}}{{2}}", rf"\text{{{n}}}"]
    return (
        gold, right,
        [
            f"-{n}", str(m), "x", f"y = {n}", f"x = {m}", f"x = -{n}", f"x > {n}", f"{n}x", f"{n} = {n} + 1",
            f"x = {m} = {n}", f"x^2 = {n * n}", f"x = {n}, {m}"],
    )


def unnamed_equation(draw: random.Random) -> Answers:
    n, m = different(draw, 2)
    left = draw.choice(["|x|", "x + y", "x^2", "xy", r"\sin x", "2^x", "a - b", r"\frac{x}{y}"])
    return (
        f"{left} = {n}", [f"{n} = {left}"],
        [str(n), f"{n} = {n}", f"x = {n}", left, "x", f"{left} = {m}", f"{left} = -{n}", f"{left} = {n}y", f"-{n}"],
    )


def function(draw: random.Random) -> Answers:
    a, b = different(draw, 2)
    gold = f"f(x) = {a}x + {b}"
    right = [f"{a}x + {b}", f"f(x) = {b} + {a}x", f"f(t) = {a}t + {b}"]
    return (
        gold, right,
        [
            f"g(x) = {a}x + {b}", f"f(x) = {a}x", f"f({a}) = {b}", str(a + b), "f(x)", "f", f"f(t) = {a}x + {b}",
            f"f(x) = {b}x + {a}"],
    )


def equation_with_a_letter_on_the_right(draw: random.Random) -> Answers:
    a, b = different(draw, 2)
    left = rf"{a} \frac{{dv}}{{dt}} + {b}v"
    return f"{left} = f", [f"f = {left}"], ["f", left, "v", f"{left} = g", f"{left} = -f", f"f = {a}", "f = f"]


def function_value(draw: random.Random) -> Answers:
    a, b, c = different(draw, 3)
    return (
        f"f({a}) = {b}", [str(b), f"{b} = f({a})"],
        [f"f({c}) = {b}", f"f({a}) = {c}", f"g({a}) = {b}", str(a), f"f({b}) = {a}", "f"],
    )


def interval(draw: random.Random) -> Answers:
    a, b = sorted(different(draw, 2))
    a = -a
    opening, closing = draw.choice("(["), draw.choice(")]")
    lower, upper = "<" if opening == "(" else r"\le", "<" if closing == ")" else r"\le"
    gold = f"{opening}{a}, {b}{closing}"
    right = [
        rf"\left{opening}{a}, {b}\right{closing}", rf"x \in {gold}", f"{a} {lower} x {upper} {b}",
        f"{opening}{a}.0,{Fraction(2 * b, 2)}{closing}"]
    turned = {"<": ">", r"\le": r"\ge"}
    right += [f"{b} {turned[upper]} x {turned[lower]} {a}", rf"x {turned[lower]} {a} \text{{ and }} x {upper} {b}"]
    wrong = [f"{o}{a}, {b}{c}" for o in "([" for c in ")]" if (o, c) != (opening, closing)]
    wrong += [
        f"{opening}{a}, {b + 1}{closing}", f"{opening}{-a}, {b}{closing}", f"{opening}{-b}, {-a}{closing}",
        rf"\{{{a}, {b}\}}", f"{a}", f"{b}", f"{b - a}"]
    wrong += [
        rf"x {turned[lower]} {a} \text{{ or }} x {upper} {b}", f"x {upper} {b}", rf"({a}, \infty)", r"\mathbb{R}",
        r"\emptyset", f"{opening}{b}, {a}{closing}"]
    other = {"<": r"\le", r"\le": "<"}
    return (
        gold, right,
        [*wrong, f"{a} {other[lower]} x {upper} {b}", f"{a} {lower} x {other[upper]} {b}", f"{a} {lower} x", "x"],
    )


def union(draw: random.Random) -> Answers:
    a, b, c = sorted(different(draw, 3))
    gold = rf"(-\infty, {a}) \cup [{b}, \infty)"
    right = [
        rf"[{b}, \infty) \cup (-\infty, {a})", rf"x < {a} \text{{ or }} x \ge {b}", rf"x \ge {b} or x < {a}",
        rf"x \in (-\infty,{a}) \cup [{b},\infty)"]
    right += [rf"\{{x \mid x < {a} \text{{ or }} x \ge {b}\}}", rf"x < {a} \lor {b} \le x"]
    wrong = [
        rf"(-\infty, {a}] \cup [{b}, \infty)", rf"(-\infty, {a}) \cup ({b}, \infty)", rf"(-\infty, {a})",
        rf"[{b}, \infty)", rf"(-\infty, {a}) \cap [{b}, \infty)"]
    wrong += [
        rf"x < {a} \text{{ and }} x \ge {b}", rf"(-\infty, {a}) \cup [{c}, \infty)", f"({a}, {b})", f"[{a}, {b})",
        r"(-\infty, \infty)", f"{a} < x < {b}"]
    return (
        gold, right,
        [
            *wrong, f"{a}, {b}", rf"(-\infty, -{a}) \cup [{b}, \infty)", rf"x \le {a} \text{{ or }} x \ge {b}",
            rf"(\infty, {a}) \cup [{b}, -\infty)"],
    )


def inequality(draw: random.Random) -> Answers:
    a, b = different(draw, 2)
    gold = rf"x \ge {a}"
    right = [
        rf"{a} \le x", rf"[{a}, \infty)", rf"x \geqslant {a}", f"x >= {a}", rf"2x \ge {2 * a}", rf"x - {a} \ge 0",
        rf"\{{x : x \ge {a}\}}"]
    return (
        gold, right,
        [
            str(a), f"x > {a}", rf"x \le {a}", f"x = {a}", rf"({a}, \infty)", rf"y \ge {a}", rf"x \ge {b}", "x",
            rf"x \ge -{a}", rf"-x \ge {a}", rf"x \ne {a}"],
    )


def inequality_of_two(draw: random.Random) -> Answers:
    a, b, c = different(draw, 3)
    gold = rf"{a}x + {b}y \le {c}"
    right = [rf"{c} \ge {b}y + {a}x", rf"{2 * a}x + {2 * b}y \le {2 * c}", rf"{a}x \le {c} - {b}y"]
    return (
        gold, right,
        [
            str(c), rf"{a}x + {b}y \ge {c}", f"{a}x + {b}y < {c}", f"{a}x + {b}y = {c}", rf"{b}x + {a}y \le {c}",
            rf"-{a}x - {b}y \le -{c}", f"{a}x + {b}y"],
    )


def all_numbers(draw: random.Random) -> Answers:
    a = different(draw, 1)[0]
    gold = draw.choice([r"(-\infty, \infty)", r"\mathbb{R}"])
    return (
        gold, [r"\mathbb{R}", r"(-\infty, +\infty)", r"x \in \mathbb{R}"],
        [
            r"(0, \infty)", rf"(-\infty, {a})", r"\emptyset", r"\infty", "R", r"\mathbb{Z}", "x", "0",
            rf"\mathbb{{R}} \setminus \{{{a}\}}", r"[-\infty, \infty]"],
    )


def empty_set(draw: random.Random) -> Answers:
    a = different(draw, 1)[0]
    gold = draw.choice([r"\emptyset", r"\{\}", r"\varnothing"])
    return gold, [r"\emptyset", r"\{ \}", "∅"], ["0", r"\{0\}", r"\{\emptyset\}", rf"\{{{a}\}}", "()", r"\{\{\}\}", "x"]


def numbers_in_a_set(draw: random.Random) -> Answers:
    a, b, c, d = different(draw, 4)
    gold = rf"\{{{a}, -{b}, {c}\}}"
    right = [
        rf"\{{{c}, {a}, -{b}\}}", rf"\left\{{ -{b}, {c}, {a} \right\}}", f"{a}, {c}, -{b}",
        rf"{a}, {c} \text{{ and }} -{b}"]
    wrong = [
        rf"\{{{a}, -{b}\}}", rf"\{{{a}, -{b}, {c}, {d}\}}", rf"\{{{a}, {b}, {c}\}}", rf"\{{{a}, -{b}, {d}\}}",
        rf"\{{{a}, {a}, {c}\}}", f"({a}, -{b}, {c})", f"[{a}, -{b}, {c}]"]
    return (
        gold, right,
        [
            *wrong, str(a - b + c), str(a), rf"\{{\{{{a}, -{b}, {c}\}}\}}", r"\{\}", "3",
            rf"\{{{a}\}}, \{{-{b}\}}, \{{{c}\}}", f"{a}, {a}, {c}"],
    )


def numbers_in_a_list(draw: random.Random) -> Answers:
    a, b, c, d = different(draw, 4)
    gold = rf"{a}, \frac{{{b}}}{{23}}, -{c}"
    right = [
        rf"-{c}, {a}, \frac{{{b}}}{{23}}", rf"{a}, -{c} \text{{ and }} {b}/23",
        rf"\boxed{{{a}}}, \boxed{{{b}/23}} \quad \text{{and}} \quad \boxed{{-{c}}}",
        rf"x = {a}, x = {b}/23, x = -{c}"]
    return (
        gold, right,
        [
            f"{a}, -{c}", rf"{a}, \frac{{{b}}}{{23}}, {c}", rf"{a}, \frac{{{b}}}{{23}}, -{c}, {d}", str(a),
            rf"{a}, \frac{{{b}}}{{23}}, -{c}, -{c}", rf"{d}, \frac{{{b}}}{{23}}, -{c}",
            rf"{a} + \frac{{{b}}}{{23}} - {c}"],
    )


def point(draw: random.Random) -> Answers:
    a, b, c = different(draw, 3)
    gold = f"({a}, -{b}, {c})"
    right = [
        rf"\left( {a}, -{b}, {c} \right)", rf"\langle {a}, -{b}, {c} \rangle", f"{a}, -{b}, {c}",
        f"(x,y,z) = ({a},-{b},{c})", rf"({a}.0, -\frac{{{2 * b}}}{{2}}, {c})"]
    wrong = [
        f"({b}, {a}, {c})", f"({c}, -{b}, {a})", f"(-{b}, {a}, {c})", f"({a}, {b}, {c})", f"({a}, -{b})",
        f"({a}, -{b}, {c}, 0)", rf"\{{{a}, -{b}, {c}\}}", f"[{a}, -{b}, {c}]", str(a), str(a - b + c)]
    return (
        gold, right,
        [*wrong, f"({a}; -{b}; {c + 1})", f"{c}, -{b}, {a}", "(x, y, z)", f"-({a}, -{b}, {c})", f"2({a}, -{b}, {c})"],
    )


def list_of_points(draw: random.Random) -> Answers:
    a, b, c, d = different(draw, 4)
    gold = f"({a},{b}), ({c},{d})"
    right = [
        f"({c},{d}), ({a},{b})", rf"\{{({c},{d}), ({a},{b})\}}", rf"({c}, {d}) \text{{ and }} ({a}, {b})",
        f"({a},{b}); ({c},{d})"]
    return (
        gold, right,
        [
            f"({a},{b})", f"({b},{a}), ({c},{d})", f"({c},{d}), ({b},{a})", f"({a},{d}), ({c},{b})",
            f"{a}, {b}, {c}, {d}", f"({a},{b},{c},{d})", f"({a},{b}), ({a},{b})", f"({a},{c}), ({b},{d})"],
    )


def column(draw: random.Random) -> Answers:
    a, b, c = different(draw, 3)

    def write(rows: str, kind: str = "pmatrix") -> str:
        return rf"\begin{{{kind}}} {rows} \end{{{kind}}}"

    gold = write(rf"{a} \\ -{b} \\ {c}")
    right = [write(rf"{a} \\ -{b} \\ {c}", "bmatrix"), write(rf"{a}.0\\-{b}\\\frac{{{2 * c}}}{{2}}")]
    wrong = [
        write(rf"{a} \\ {b} \\ {c}"), write(rf"-{b} \\ {a} \\ {c}"), write(rf"{a} & -{b} & {c}"),
        write(rf"{a} \\ -{b}"), write(rf"{a} \\ -{b} \\ {c + 1}"), f"({c}, -{b}, {a})", str(a)]
    return gold, right, [*wrong, write(rf"{c} \\ -{b} \\ {a}", "vmatrix"), write(rf"{a} \\ -{b} \\ {c} \\ 0")]


def matrix(draw: random.Random) -> Answers:
    a, b, c, d = different(draw, 4)

    def write(w: object, x: object, y: object, z: object, kind: str = "pmatrix") -> str:
        return rf"\begin{{{kind}}} {w} & {x} \\ {y} & {z} \end{{{kind}}}"

    wrong = [
        write(a, c, b, d), write(b, a, d, c), write(c, d, a, b), write(a, b, c, -d), write(a, b, c, d + 1),
        str(a * d - b * c), f"({a}, {b}, {c}, {d})", write(a, b, c, d, "vmatrix")]
    return write(a, b, c, d), [write(a, b, c, d, "bmatrix"), write(f"{a}.0", b, c, rf"\frac{{{2 * d}}}{{2}}")], wrong


def named_values(draw: random.Random) -> Answers:
    a, b = different(draw, 2)
    gold = f"x = {a}, y = {b}"
    right = [
        f"y = {b}, x = {a}", f"({a}, {b})", f"(x, y) = ({a}, {b})", rf"x = {a} \text{{ and }} y = {b}", f"{a}, {b}"]
    return (
        gold, right,
        [
            f"x = {b}, y = {a}", f"({b}, {a})", f"x = {a}", f"y = {b}", f"x = {a}, z = {b}", f"x = {a}, y = {b + 1}",
            str(a + b), f"x = {a}, x = {b}", f"{b}, {a}", f"x = {a}, y = {b}, z = 0"],
    )


UNITS = {  # names of one unit each, and other units
    ("cm", "centimeters"): ["m", "km", "cm^2"],
    ("kg", "kilograms"): ["g", "mg", "cm"],
    ("hours", "h"): ["minutes", "seconds", "km/h"],
    ("km/h", "kilometers per hour"): ["km", "m/s", "mph"],
    ("dollars", "USD"): ["cents", "euros"],
    ("square feet", "ft^2"): ["feet", "cubic feet", "square meters"],
}


def quantity(draw: random.Random) -> Answers:
    n, m = different(draw, 2)
    names = draw.choice([*UNITS])
    gold = rf"{n} \text{{ {names[0]}}}"
    right = [
        str(n), *(rf"{n}\text{{ {name}}}" for name in names), f"{n} {names[0]}", rf"{n}\ \mathrm{{{names[0]}}}",
        f"{n}.0"]
    wrong = [rf"{n}\text{{ {other}}}" for other in UNITS[names]]
    wrong += [
        rf"{m}\text{{ {names[0]}}}", rf"-{n}\text{{ {names[0]}}}", rf"\text{{{names[0]}}}", rf"{n}\%",
        rf"{n}\text{{ thousand {names[0]}}}", rf"{n}\text{{ or {m} {names[0]}}}", rf"{n}x"]
    return (
        gold, right,
        [*wrong, rf"{n}^2 \text{{ {names[0]}}}", rf"{n}{n}\text{{ {names[0]}}}", f"{n}^\\circ", f"{n}'", rf"{n}\ldots"],
    )


def number(draw: random.Random) -> Answers:
    n, m = different(draw, 2, low=3)
    right = [
        rf"\boxed{{{n}}}", f"$\\boxed {n}$", rf"\textcolor{{red}}{{{n}}}", rf"\underline{{{n}}}", rf"\mathbf{{{n}}}",
        rf"{n}\text{{ any text}}", f"{n} bananas", rf"\text{{{n}}}", f"{n}.", f"x = {n}", rf"{n}\%", f"+{n}", f"({n})",
        f"m + n = {n}"]
    wrong = [
        f"{n}'", f"{n}''", f'{n}"', rf"{n}\ldots", rf"{n}\dots", f"{n}...", rf"{100 * n}\%", rf"\overline{{{n}}}",
        f"{n}!", f"|x| = {n}", f"x > {n}", f"{n}_8", f"{n}i", rf"\sqrt{{{n}}}", f"x^2 = {n}", f"{m} = {n}"]
    return (
        str(n), right,
        [
            *wrong, f"{n} or {m}", f"{n}, {m}", rf"\pm {n}", f"-{n}", f"{n}^{m}", rf"{n} \pmod{{{n + m}}}",
            f"2x = {n}", rf"{n}\text{{ or more}}", rf"\approx {n}.4"],
    )


def percentage(draw: random.Random) -> Answers:
    n, m = different(draw, 2)
    right = [str(n), f"{n}%", rf"{n} \text{{ percent}}", f"{Fraction(n, 100)}", str(n / 100)]
    return (
        rf"{n}\%", right,
        [
            rf"{m}\%", str(100 * n), rf"{100 * n}\%", rf"-{n}\%", rf"{n}\text{{ cm}}", str(n / 10), rf"{n / 100}\%",
            rf"{n}^\circ", rf"{n}\%, {m}\%"],
    )


def numeral(draw: random.Random) -> Answers:
    base, other = draw.sample([3, 4, 5, 6, 7, 8, 9], 2)
    digits = "12" + "".join(draw.choice("012") for _ in range(3))
    gold = f"{digits}_{base}"
    names = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
    right = [
        f"{digits}_{{{base}}}", f"({digits})_{base}", f"({digits})_{{{base}}}",
        rf"{digits}_{{\text{{{names[base]}}}}}"]
    return (
        gold, right,
        [
            digits, f"{digits}_{other}", f"({digits})_{{{other}}}", str(int(digits, base)),
            f"{digits[::-1] + '1'}_{base}", f"{digits}_{{10}}", str(base)],
    )


def ratio(draw: random.Random) -> Answers:
    a, b = draw.choice([(2, 3), (3, 7), (5, 8), (4, 9), (5, 7)])
    return (
        f"{a}:{b}", [f"{2 * a}:{2 * b}", rf"{a} : {b}", f"V_1 : V_2 = {a}:{b}"],
        [
            f"{b}:{a}", rf"\frac{{{a}}}{{{b}}}", str(a / b), f"{a}:{b + 1}", f"{a}, {b}", f"({a}, {b})", str(a),
            f"{a}:{b}:1", f"{a}{b}"],
    )


def angle(draw: random.Random) -> Answers:
    n = draw.choice([30, 45, 60, 72, 120])
    fraction = Fraction(n, 180)
    right = [str(n), f"{n}°", rf"{n}\text{{ degrees}}", rf"\frac{{{fraction.numerator}\pi}}{{{fraction.denominator}}}"]
    return (
        rf"{n}^\circ", right,
        [
            str(fraction), rf"{n}\text{{ radians}}", rf"{n}\pi", rf"-{n}^\circ", rf"{180 - n + 1}^\circ", rf"{n}\%",
            rf"{n}'", rf"\sin {n}^\circ"],
    )


def repeating_decimal(draw: random.Random) -> Answers:
    fixed, repeated = draw.randrange(10), draw.choice(["3", "6", "27", "154", "09"])
    value = Fraction(fixed, 10) + Fraction(int(repeated), 10 ** len(repeated) - 1) / 10
    gold = rf"0.{fixed}\overline{{{repeated}}}"
    right = [
        str(value), rf"\frac{{{value.numerator}}}{{{value.denominator}}}", rf"0.{fixed}\overline{{{repeated * 2}}}"]
    return (
        gold, right,
        [
            f"0.{fixed}{repeated}", rf"0.\overline{{{fixed}{repeated}}}",
            rf"0.{(fixed + 1) % 10}\overline{{{repeated}}}", rf"\overline{{{repeated}}}", f"-{value}",
            rf"1.{fixed}\overline{{{repeated}}}"],
    )


def logarithm(draw: random.Random) -> Answers:
    n, m = different(draw, 2)
    right = [rf"\log_e {n}", rf"\log_{{e}} {n}", rf"\frac12 \ln {n * n}", rf"\ln({n})"]
    return (
        rf"\ln {n}", right,
        [
            rf"\log_2 {n}", rf"\log_{{10}} {n}", rf"\ln {m}", rf"-\ln {n}", str(n), rf"\frac{{1}}{{\ln {n}}}",
            f"e^{n}", "e"],
    )


def letter(draw: random.Random) -> Answers:
    first, other = draw.sample("ABCDEFGHKMPQRSTXYZ", 2)
    return (
        first, [rf"\text{{{first}}}", f"({first})", rf"\textbf{{({first})}}", rf"\mathrm{{{first}}}"],
        [
            other, first.lower(), f"{first}{other}", f"{first}, {other}", f"{first}'", f"-{first}", "1",
            f"{first} = {other}", rf"\text{{not {first}}}"],
    )


KINDS: list[Callable[[random.Random], Answers]] = [
    line, plane, conic, explicit_line, named_value, unnamed_equation, function, function_value,
    equation_with_a_letter_on_the_right, interval, union,
    inequality, inequality_of_two, all_numbers, empty_set, numbers_in_a_set, numbers_in_a_list, point, list_of_points,
    column, matrix, named_values, quantity, number, percentage, numeral, ratio, angle, repeating_decimal,
    logarithm, letter,
]
