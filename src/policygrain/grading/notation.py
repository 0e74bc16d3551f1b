"""Answers as text: one notation, where LaTeX and Unicode have several, and its parts; in linear time, no algebra."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from importlib import resources
from typing import Any

import yaml

from .grader import Options
from .units import MEANINGFUL

MAX_DEPTH = 40  # of brackets in an answer
_SYMBOLS = "°º×·⋅πθ∞≤≥≠±∪∩∈∅"
_COMMANDS = r"^\circ ^\circ \times \cdot \cdot \pi \theta \infty \le \ge \ne \pm \cup \cap \in \emptyset"
_TABLE = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63", "-")
    | dict(zip("÷⁄，；：。、（）０１２３４５６７８９", "//,;:.,()0123456789", strict=True))
    | dict.fromkeys("\u200b\u2060\ufeff", "")
    | {character: f"{command} " for character, command in zip(_SYMBOLS, _COMMANDS.split(), strict=True)}
    | {"€": r"\text{euro}", "£": r"\text{GBP}", "¥": r"\text{yen}"}
    | {c: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", c).split("⁄")) for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
)
APPROXIMATELY = "≈"
TABLES = yaml.safe_load(resources.files(__package__).joinpath("notation.yaml").read_text("utf-8"))
_COMMAND_OF = {name: command for command, names in TABLES["synonyms"].items() for name in names.split()}
RELATION = re.compile(r"[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")  # an inequality sign
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASES |= {"twelve": 12, "sixteen": 16}
_BASED = re.compile(
    r"(?<![\w}\\])(?:\(([0-9][0-9A-Za-z]*)\)|([0-9][0-9A-Za-z]*)) ?_ ?"
    r"(?:\{ ?(?:\\text ?\{)? ?(\d{1,2}|[a-z]+) ?\}? ?\}|(?:\\text ?\{ ?([a-z]+) ?\})|(\d{1,2}))"
)


def _connective(match: re.Match[str]) -> str:
    """`and` and `or`: commas between values, logical operators between inequalities."""
    if not RELATION.search(match.string):
        return ", "
    return " \\land " if (match[1] or match[2] or match[3]) in ("and", "land", "wedge") else " \\lor "


def _fraction(match: re.Match[str]) -> str:
    r"""A repeating decimal as a fraction: `0.1\overline{6}` is (16 - 1)/90."""
    whole, fixed, repeated = match[1], match[2], match[3] or match[4]
    value = int(whole + fixed + repeated) - int(whole + fixed or 0)
    return f"\\frac{{{value}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}}"


def _based(match: re.Match[str]) -> str:
    """A numeral with its base in digits; base ten is left out."""
    digits, base = match[1] or match[2], match[3] or match[4] or match[5]
    number = int(base) if base.isdecimal() else _BASES.get(base)
    return match[0] if number is None else digits if number == 10 else f"{digits.upper()}_{{{number}}}"


_DEGREES = r" ?([\d.]+) ?\^\\circ *"
_FUNCTION = r"\\(?:sin|cos|tan|cot|sec|csc)(?:\^ ?(?:\{ ?-?\d ?\}|\d))? ?"
_REWRITTEN: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}"),
    (r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}"),
    (r"\\\\(?=[a-zA-Z])(?!.*\\end)", r"\\"),
    (r"\\(?:rm|bf|it) (?!\{)", " "),
    (r"\\([a-zA-Z]+)", lambda match: _COMMAND_OF.get(match[1], match[0])),
    *map(tuple, TABLES["rewritten"]),
    (
        r",? ?(?:\\text ?\{ ?,? ?(and|or),? ?\}|(?<=[\d)}\]\s])\b(and|or)\b(?![^{}]*\})"
        r"|\\(land|lor|wedge|vee)(?![a-zA-Z])) ?",
        _connective,
    ),
    (r"(\d*)\.(\d*)\\overline ?(?:\{ ?(\d+) ?\}|(\d))", _fraction),
    (_BASED.pattern, _based),
    # Degrees in trigonometric functions become radians: the parser drops the degree sign.
    (rf"({_FUNCTION})(?:\({_DEGREES}\)|\{{{_DEGREES}\}}|{_DEGREES})", r"\1(\2\3\4 \\cdot \\frac{\\pi}{180})"),
]
_COMPILED = [(re.compile(pattern), replacement) for pattern, replacement in _REWRITTEN]
_LEADING = re.compile(r"^(?:[=≈+]|\\sim(?![a-zA-Z])|\\therefore(?![a-zA-Z])) ?")
_TRAILING = re.compile(r"(?:[ ,;]|(?<!\.)\.)+$")  # dots that stand for more digits or terms remain
_BRACKETS = re.compile(r"(\\\{(?=.*\\\}$)|[(\[](?!.*\\\}$))(.+?)(\\\}|[)\]])")
_BOTH_SIGNS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![\d.,])(?<![(\[])\d{1,3}(?:,\d{3})+(?!\d|,\d)|(?<=[(\[])\d{1,3}(?:,\d{3})+(?![\d,)\]])")


@functools.lru_cache(maxsize=10_000)
def normalize(text: str) -> str:
    text = " ".join(text.translate(_TABLE).split())
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    text = unbraced(_TRAILING.sub("", " ".join(text.split())))
    return _LEADING.sub("", _TRAILING.sub("", text))


def unbraced(text: str) -> str:
    """``text`` without braces around the whole of it: `{{3}}` is `3`."""
    for _ in range(MAX_DEPTH):
        levels = open_brackets(text[1:-1]) or [0]
        if text[:1] + text[-1:] != "{}" or min(levels) < 0 or levels[-1]:
            break
        text = text[1:-1].strip()
    return text


@functools.lru_cache(maxsize=10_000)
def compact(text: str) -> str:
    """``text`` in one notation without spaces, except where they may separate digits."""
    return unbraced(OPTIONAL_SPACES.sub("", normalize(text)).replace("\\$", ""))


def split_top(text: str, separator: str) -> list[str]:
    """``text``, split where the regular expression ``separator`` matches outside brackets and environments."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(rf"(?P<open>[(\[{{]|\\begin)|(?P<close>[)\]}}]|\\end)|(?:{separator})", text):
        if match["open"] or match["close"]:
            depth += 1 if match["open"] else -1
        elif depth <= 0:
            parts.append(text[begin : match.start()].strip())
            begin = match.end()
    parts.append(text[begin:].strip())
    return parts


_DENYING = MEANINGFUL - {"are", "all", "for", "ratio"}  # words before a value that do not only introduce it
_TEXTS = re.compile(r"\\text ?\{([^{}]*)\}")
# What is said about a letter of an answer after it: `, k \in \mathbb{Z}`, ` for any real c`, ` for n \ge 1`.
_ABOUT_A_LETTER = re.compile(
    r"(?P<value>.+?)(?P<about> ?[,(]? ?(?P<lead>(?:for|where|with) )?(?:(?:all|any|every|each|some|an|a|arbitrary|real|"
    r"integers?|numbers?|constant) )*(?P<letter>[A-Za-z])(?P<kind> ?\\in ?(?:\\mathbb ?)?\{? ?[ZRQC] ?\}?"
    r"| ?(?:\\ge|\\ne|>) ?-?\d+| is(?: (?:an|a|any|some|arbitrary|real|integer|number|constant))+)? ?\)?)"
)
_LABEL = re.compile(
    r"(?P<label>[A-Za-z][A-Za-z ,'-]{2,}?(?: is| are| equals| ?:)) ?(?P<value>[-\d\\([].*|[A-Za-z] ?=.*)"
)
_IS_THE_ANSWER = re.compile(r" is (?:the|my) (?:final |correct )?(?:answer|solution|value|result)$")
_OPTION = re.compile(r"\(?(?P<letter>[A-J])(?:\)? ?[.:] ?(?=\w|\\)(?!\(?[A-J]$)|\) ?(?=\d|\\frac|\\sqrt)).+")


def plain(text: str) -> str:
    """``text`` without text commands: their words are beside the rest."""
    return " ".join(_TEXTS.sub(r"\1", text).split())


def without_range(text: str) -> str:
    r"""``text`` without the usual range of one of its letters: `2k\pi` for `2k\pi, k \in \mathbb{Z}`."""
    match = _ABOUT_A_LETTER.fullmatch(plain(text))
    if not match or not (match["lead"] or match["kind"]) or RELATION.search(match["value"]):
        return text
    # By convention i to n are integers. Other letters may be real; a range of integers restricts them.
    restricted = r"\b[RQC]\b|real" if match["letter"] in "ijklmn" else r"\bZ\b|integer"
    is_used = match["letter"] in re.sub(r"\\[a-zA-Z]+", "", match["value"])
    is_usual = not re.search(restricted, match["about"]) if is_used else "all " in match["about"]
    return match["value"] if is_usual else text


def labelled(text: str) -> tuple[str, str]:
    """The words that introduce a value, "" if there are none, and the value: (`The answer is`, `5`)."""
    flat = _IS_THE_ANSWER.sub("", plain(text))
    match = _LABEL.fullmatch(flat)
    if match and _DENYING.isdisjoint(match["label"].lower().split()):
        return match["label"].casefold(), match["value"]
    return "", flat if flat.lstrip("\\$")[:1].isdigit() and (text.startswith("\\text") or flat.isdigit()) else text


def same_option(gold: str, answer: str) -> bool:
    """Whether one is the letter of an option, and the other this letter with the option's text: `E` and `(E) 12`."""
    letter, option = sorted(map(plain, (gold, answer)), key=len)
    match = _OPTION.fullmatch(option)
    return match is not None and match["letter"] == letter.strip("(). ")


def without_thousands(text: str) -> str:
    """``text`` without the commas of `12,345`; `(12,345)` is a pair."""
    return _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)


def bracketed(text: str) -> tuple[str, list[str]]:
    r"""The brackets of a collection, "{}" of a set, and its items: `[1,2)` is ("[)", ["1", "2"]), `1,2` is ("", …).

    Brackets other than braces around a single item do not make a collection. An item `a \pm b` is two.
    """
    if (match := _BRACKETS.fullmatch(text)) and min(open_brackets(match[2])) >= 0:
        items = split_items(match[2])
        if match[1] == "\\{" or len(items) > 1:
            return (match[1] + match[3]).replace("\\", ""), both_signs(items)
    return "", both_signs(split_items(text))


def is_list(gold: str, known: bool = False) -> bool:
    """Whether a gold answer is several answers: it is ``known`` to be, or has no brackets around them."""
    brackets, items = bracketed(without_thousands(normalize(gold)))
    return known or (len(items) > 1 and not brackets)


def split_items(text: str) -> list[str]:
    """``text``, split at commas and semicolons. `p=5,q=2; p=7,q=2` are two items, also with a comma between them."""
    items = split_top(text, "[,;]")
    names = [item.partition("=")[0].strip() for item in items if "=" in item]
    size = len(dict.fromkeys(names))
    if 1 < size < len(items) == len(names) and names == names[:size] * (len(names) // size):
        return [", ".join(items[i : i + size]) for i in range(0, len(items), size)]
    return items


def both_signs(items: list[str]) -> list[str]:
    r"""``items`` with each `a \pm b` written as `a + b` and `a - b`."""
    expanded = []
    for item in items:
        signs = "+-" if len(_BOTH_SIGNS.findall(item)) == 1 else [r"\g<0>"]
        expanded += [_BOTH_SIGNS.sub(sign, item).removeprefix("+").strip() for sign in signs]
    return expanded


def matched(golds: list[Any], answers: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether answers and gold answers can be matched one to one."""
    remaining = list(answers)
    for gold in golds:
        place = next((i for i, answer in enumerate(remaining) if same(gold, answer)), None)
        if place is None:
            return False
        del remaining[place]
    return not remaining


FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|pi"
# Letters beside one another, but not `aby` in `3aby`, nor the e of `axe^{2}`.
_RUN = r"(?:\\text ?\{[A-Za-z .]*\}|(?<![A-Za-z\\])(?:(?<!\d)|(?=[A-Za-z]{4}))(?:[A-Za-z]+(?=e ?\^)|[A-Za-z]+))"
_RUNS = re.compile(
    rf"(?P<words>{_RUN}(?: *{_RUN})*)"
    r"|\\(?:text|begin|end|mathbb|operatorname) ?\{[^{}]*\}|_ ?\{[^{}]*\}|\\[a-zA-Z]+"
)
_NUMERAL, _VOWEL, _NO_PRODUCT = map(re.compile, ("[IVXLCDM]{2}|NO", "(?i)[eio]", "(?i)[aeiou]|^[^x]*y[^x]*$"))
_CAPITALS = re.compile("[A-Z]?[a-z]+|[A-Z]+")


def is_word(letters: str, alone: bool) -> bool:
    """Whether ``letters`` are a word, not a product such as `xyz`; ``alone``: nothing is beside them (`no`, `IV`)."""
    if len(letters) == 2:
        return alone and bool(_NUMERAL.match(letters) or (not letters.isupper() and _VOWEL.search(letters)))
    if len(letters) < 3 or letters in FUNCTIONS.split("|") or not _CAPITALS.fullmatch(letters):
        return False
    is_product = "".join(sorted(letters)) in "abcdpqrstuvwxyz" or not _NO_PRODUCT.search(letters)
    return letters.isupper() or not is_product


def words_as_text(text: str) -> str:
    r"""``text`` with each word, and adjacent ones together, as a symbol that is unlike any product."""

    def replaced(match: re.Match[str]) -> str:
        words = plain(match["words"] or "")
        has_word = any(is_word(run, run == plain(text).strip(".")) for run in re.findall("[A-Za-z]+", words))
        return f"\\text{{WORD {words.upper().strip(' .')}}}" if has_word else match[0]

    return _RUNS.sub(replaced, text)


def bases(text: str) -> list[str]:
    """The numerals of a normalized ``text`` with a base other than ten, as `12_{8}`, sorted."""
    return sorted(match[0] for match in _BASED.finditer(text))


# At most 40 digits: longer numbers are compared as expressions, within the limits of the workers.
_INTEGER = r"(?:\d{1,3}(?:,\d{3}){1,13}|\d{1,3}(?:\s\d{3}){1,13}|\d{1,40})"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d{{1,40}})?|\.\d{{1,40}})"
_NUMBER = re.compile(rf"([-+]?{_DECIMAL}(?:[eE][-+]?\d{{1,3}})?)(?:/({_DECIMAL}))?")
_POWER = re.compile(r"(?:\\times|\\cdot|\*)10\^(?:\{([-+]?\d{1,3})\}|(\d)(?!\d))")
_FRACTION = re.compile(r"^([-+]?)\\[dtc]?frac\{([\d.,\s]+)\}\{([\d.,\s]+)\}$")
_SEPARATORS = re.compile(r"[,\s]")
OPTIONAL_SPACES = re.compile(r"\s+(?![\d.])|(?<![\d.,])\s+")  # others may separate digits: `1 000`, `1 2`


def parse_number(text: str) -> Fraction | None:
    """The number written in ``text``, which has no optional spaces; None if it is not one number (`1,3` is two)."""
    match = _NUMBER.fullmatch(_POWER.sub(r"e\1\2", _FRACTION.sub(r"\1\2/\3", text)))
    if match is None:
        return None
    top, bottom = (Fraction(_SEPARATORS.sub("", part)) for part in (match[1], match[2] or "1"))
    return top / bottom if bottom else None


def same_number(gold_text: str, given_text: str, options: Options) -> bool | None:
    """Whether two numbers are equal, within a tolerance, or to six decimals if one has a point; None if one is none."""
    gold, given = parse_number(gold_text), parse_number(given_text)
    if gold is None or given is None:
        return None
    difference = abs(gold - given)
    # The relative bound distinguishes 1e-10 from 2e-10, which are equal to six decimals.
    is_rounding = "." in gold_text + given_text and difference <= min(Fraction(1, 10**6), abs(gold) / 10**5)
    return difference == 0 or is_rounding or options.within_tolerance(gold, given)


def open_brackets(text: str) -> list[int]:
    """The number of brackets that are open after each character."""
    return [*itertools.accumulate((c in "([{") - (c in ")]}") for c in text)]


def depth(text: str) -> int:
    """The largest number of brackets that are open at once."""
    return max(open_brackets(text), default=0)
