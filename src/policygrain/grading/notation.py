r"""One notation for answers: what LaTeX and Unicode can write in several ways is rewritten to one of them.

Only text is handled here, in time linear in its length, and no algebra. ``normalize`` is applied to gold answers and to
answers alike before anything is compared.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from .numbers import parse_number, unbraced

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63"
_SYMBOLS = {
    "°": "^\\circ ",
    "º": "^\\circ ",
    "×": "\\times ",
    "·": "\\cdot ",
    "⋅": "\\cdot ",
    "÷": "/",
    "⁄": "/",
    "π": "\\pi ",
    "θ": "\\theta ",
    "∞": "\\infty ",
    "≤": "\\le ",
    "≥": "\\ge ",
    "≠": "\\ne ",
    "±": "\\pm ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∈": "\\in ",
    "∅": "\\emptyset ",
    "€": "\\text{euro}",
    "£": "\\text{pound sterling}",
    "¥": "\\text{yen}",
    "，": ",",
    "；": ";",
    "：": ":",
    "。": ".",
    "、": ",",
    "（": "(",
    "）": ")",
    "\u200b": "",
    "\u2060": "",
    "\ufeff": "",
}
_TABLE = str.maketrans(
    dict.fromkeys(_DASHES, "-")
    | _SYMBOLS
    | {chr(0xFF10 + digit): str(digit) for digit in range(10)}
    | {character: f"^{{{unicodedata.digit(character)}}}" for character in "⁰¹²³⁴⁵⁶⁷⁸⁹"}
    | {c: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", c).split("⁄")) for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
)
_ROOT = re.compile(r"√\s*(?:\((?P<group>[^()]*)\)|(?P<token>\d+|[A-Za-z]))")
_SEPARATOR = re.compile(r"\\text ?\{ ?(?P<content>[,;]? ?(?:and|or)?[,;]?) ?\}")
_DEGREES = r" ?([\d.]+) ?\^\\circ ?"
_FUNCTION = r"\\(?:sin|cos|tan|cot|sec|csc)(?:\^ ?(?:\{ ?-?\d ?\}|\d))? ?"
_OF_DEGREES = re.compile(rf"({_FUNCTION})(?:\({_DEGREES}\)|\{{{_DEGREES}\}}|{_DEGREES})")
_AND = re.compile(r"(?<=[\d)}\]]),? ?\b(?:and|or)\b ?")
_REWRITTEN = [
    (re.compile(r"\\(?:textnormal|textbf|textit|textrm|textsf|texttt|textup|mbox|hbox)(?![a-zA-Z])"), r"\\text"),
    (re.compile(r"\\[hv]?phantom ?\{[^{}]*\}"), ""),
    (re.compile(r"(?<=\d)(?:, ?\\!|\{ ?, ?\}) ?(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<!\\)\\! ?"), ""),
    (re.compile(r"(?<!\\)\\[,;:>]|(?<!\\)\\ |~|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick|en)?space(?![a-zA-Z])"), " "),
    (re.compile(r"(?<![a-z] )(?<![a-z])\{ ?, ?\}"), ","),
    (re.compile(r"(?<!\\)\$"), ""),
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?"), ""),
    (re.compile(r"(?:\{ ?\})?\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"(?<![\d.,/] )(?<![\d.,/])(\d+) (\d+)/(\d+)(?![\d/])"), r"\1 \\frac{\2}{\3}"),
    (re.compile(r"\\\{ ?\\\}|\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\(?:leq|leqslant)(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![a-zA-Z])"), r"\\ge "),
]
APPROXIMATELY = "≈"
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|doteq|cong)(?![a-zA-Z])")
_LEADING = re.compile(r"(?:[=≈]|\\sim(?![a-zA-Z])|\\therefore(?![a-zA-Z])) ?")
_DISPLAY = re.compile(r"\\[\[(] ?((?:(?!\\[\[\]()]).)*?) ?\\[\])]", re.DOTALL)
_COMMAS = re.compile(r",(?: ?,)+")
_MEMBER = re.compile(r"[A-Za-z](?:_\w)? ?\\in(?![a-zA-Z]) ?")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")

_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASES |= {"twelve": 12, "sixteen": 16}
_BASED = re.compile(
    r"(?<![\w}\\])\(?([0-9][0-9A-Za-z]*)\)? ?_ ?"
    r"(?:\{ ?(?:\\text ?\{)? ?(\d{1,2}|[a-z]+) ?\}? ?\}|(?:\\text ?\{ ?([a-z]+) ?\})|(\d{1,2}))"
)
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?(?:(?:\\text\{)?([apAP])\.?[mM]\.?\}?)?")


@functools.lru_cache(maxsize=10_000)
def normalize(text: str) -> str:
    """``text`` in one notation: spaces, dashes, separators, degrees, brackets and text commands."""
    text = " ".join(text.translate(_TABLE).split())
    text = _ROOT.sub(lambda m: f"\\sqrt{{{m['group'] or m['token']}}}", text) if "√" in text else text
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    text = _AND.sub(", ", _SEPARATOR.sub(lambda m: ", " if m["content"].strip() else " ", text))
    text = _COMMAS.sub(",", _APPROXIMATELY.sub(APPROXIMATELY, text))
    # Degrees in trigonometric functions become radians: the parser drops the degree sign.
    text = _OF_DEGREES.sub(lambda m: f"{m[1]}({m[2] or m[3] or m[4]} \\cdot \\frac{{\\pi}}{{180}})", text)
    text = unbraced(" ".join(text.split()).rstrip(" .,;")).rstrip(" .,;")
    if match := _DISPLAY.fullmatch(text):
        text = unbraced(match[1].rstrip(" .,;"))
    if match := _LEADING.match(text):
        text = text[match.end() :]
    return text


_REMOVED = re.compile(r"\s+(?![\d.])|(?<![\d.,])\s+")


@functools.lru_cache(maxsize=10_000)
def compact(text: str) -> str:
    """``text`` in one notation without spaces, except where they may separate digits."""
    return unbraced(_REMOVED.sub("", normalize(text)).replace("\\$", ""))


def split_top(text: str, separators: str) -> list[str]:
    """``text`` at the separators that are outside brackets."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character in separators and depth <= 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:].strip())
    return parts


def equation_members(text: str) -> list[str]:
    """``text`` at its equality signs; a text with another relation is one member."""
    if re.search(r"[<>!:]=|=[<>]|[<>]|\\(?:le|ge|ne|neq|lt|gt|equiv|in)(?![a-zA-Z])", text):
        return [text]
    return split_top(text, "=")


def is_relation(text: str) -> bool:
    """Whether ``text`` has an inequality sign."""
    return re.search(r"[<>]|\\(?:le|ge|lt|gt)(?![a-zA-Z])", text) is not None


def without_member(text: str) -> str:
    r"""``text`` without the variable of `x \in`."""
    return text[match.end() :] if (match := _MEMBER.match(text)) else text


def without_thousands(text: str) -> str:
    """``text`` without the commas of `12,345`."""
    return _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)


def bracketed(text: str) -> tuple[str, list[str]]:
    r"""The enclosing brackets of a collection and its items: `[1,2)` is ("[)", ["1", "2"]), `1,2` is ("", …).

    Set braces are "{}". Brackets that enclose a single item are no collection unless they are set braces.
    """
    if parse_number(text):
        return "", [text]
    opening, inner, closing = text[:1], text[1:-1], text[-1:]
    if text.startswith("\\{") and text.endswith("\\}"):
        opening, inner, closing = "{", text[2:-2], "}"
    pairs = {"(": ")]", "[": ")]", "{": "}"}
    if len(text) > 2 and closing and closing in pairs.get(opening, "") and _encloses(inner):
        items = split_top(inner, ",;")
        if (opening == "{" and text[0] == "\\") or (len(items) > 1 and opening != "{"):
            return opening + closing, items
    return "", split_top(text, ",;")


def _encloses(inner: str) -> bool:
    """Whether no bracket of ``inner`` is closed that is not opened in it."""
    depth = 0
    for character in inner:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def both_signs(items: list[str]) -> list[str]:
    r"""``items`` with each `a \pm b` written as `a + b` and `a - b`."""
    found = []
    for item in items:
        if len(re.findall(r"\\(?:pm|mp)(?![a-zA-Z])", item)) == 1:
            found += [re.sub(r"^\+ ?", "", re.sub(r"\\(?:pm|mp)(?![a-zA-Z])", sign, item)) for sign in "+-"]
        else:
            found.append(item)
    return found


def bases(text: str) -> list[tuple[str, int]]:
    """(digits, base) of the numerals with a base other than ten, as `12_8`, sorted."""
    found = []
    for match in _BASED.finditer(text):
        base = next(group for group in match.groups()[1:] if group)
        number = int(base) if base.isdecimal() else _BASES.get(base)
        if number is not None and number != 10:
            found.append((match[1].upper(), number))
    return sorted(found)


def without_base_ten(text: str) -> str:
    """``text`` without the subscripts that say that a numeral is in base ten."""
    return _BASED.sub(lambda m: m[1] if "10" in m.groups()[1:] or "ten" in m.groups()[1:] else m[0], text)


def clock(text: str) -> tuple[int, int, int, str] | None:
    """(hours, minutes, seconds, "a", "p" or "") if ``text`` is a time of day, else None."""
    match = _TIME.fullmatch(re.sub(r"\s", "", text))
    if match is None or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0), (match[4] or "").lower()
