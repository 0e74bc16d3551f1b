r"""Rewrites answers to one notation, where LaTeX and Unicode have several for the same expression.

These functions work on text, in time linear in its length, without algebra. ``normalize`` is applied to gold answers
and to answers before they are compared.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable

from .numeric import OPTIONAL_SPACES, open_brackets, unbraced
from .units import MEANINGFUL

_SYMBOLS = "°º×·⋅πθ∞≤≥≠±∪∩∈∅"
_COMMANDS = r"^\circ ^\circ \times \cdot \cdot \pi \theta \infty \le \ge \ne \pm \cup \cap \in \emptyset"
_TABLE = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63", "-")
    | dict(zip("÷⁄，；：。、（）０１２３４５６７８９", "//,;:.,()0123456789", strict=True))
    | dict.fromkeys("\u200b\u2060\ufeff", "")
    | {character: f"{command} " for character, command in zip(_SYMBOLS, _COMMANDS.split(), strict=True)}
    | {"€": r"\text{euro}", "£": r"\text{pound sterling}", "¥": r"\text{yen}"}
    | {c: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", c).split("⁄")) for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
)
APPROXIMATELY = "≈"
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASES |= {"twelve": 12, "sixteen": 16}
_BASED = re.compile(
    r"(?<![\w}\\])(?:\(([0-9][0-9A-Za-z]*)\)|([0-9][0-9A-Za-z]*)) ?_ ?"
    r"(?:\{ ?(?:\\text ?\{)? ?(\d{1,2}|[a-z]+) ?\}? ?\}|(?:\\text ?\{ ?([a-z]+) ?\})|(\d{1,2}))"
)


def is_relation(text: str) -> bool:
    """Whether ``text`` has an inequality sign."""
    return _RELATION.search(text) is not None


def _connective(match: re.Match[str]) -> str:
    """`and` and `or`: commas between values, logical operators between inequalities."""
    if not is_relation(match.string):
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


_END = r"(?![a-zA-Z])"
_DEGREES = r" ?([\d.]+) ?\^\\circ *"
_FUNCTION = r"\\(?:sin|cos|tan|cot|sec|csc)(?:\^ ?(?:\{ ?-?\d ?\}|\d))? ?"
_REWRITTEN: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))", r"\\sqrt{\1\2}"),
    (r"\\\\(?=[a-zA-Z])(?!.*\\end)", r"\\"),
    (r"\\(?:rm|bf|it) (?!\{)", " "),
    (
        r"\\(?:text(?:normal|bf|it|rm|sf|tt|up)|math(?:rm|bf|it|sf|normal)|mbox|hbox|rm|bf|boldsymbol)" + _END,
        r"\\text",
    ),
    (r"\\[hv]?phantom ?(?:\{[^{}]*\}|[-+\d])", ""),
    (r"\\(?:text)?color ?\{[^{}]*\}|\\(?:underline|displaystyle|textstyle)" + _END, ""),
    (r"(?<=\d)(?:, ?\\!|\{ ?, ?\}) ?(?=\d{3}(?!\d))", ""),
    (r"(?<!\\)\\! ?", ""),
    (r"(?<!\\)\\[,;:>]|(?<!\\)\\ |~|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick|en)?space" + _END, " "),
    (r"(?<![a-z] )(?<![a-z])\{ ?, ?\}", ","),
    (r"(?<!\\)\$", ""),
    (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?", ""),
    (r"\\langle" + _END, "("),
    (r"\\rangle" + _END, ")"),
    (r"\\[dtc]frac" + _END, r"\\frac"),
    (r"\\log ?_ ?(?:e(?![a-zA-Z])|\{ ?e ?\})", r"\\ln "),
    (r"(?:\{ ?\})?\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-zA-Z]))|\\degree" + _END, r"^\\circ "),
    (r"(?<![\d.,/] )(?<![\d.,/])(\d+) (\d+)/(\d+)(?![\d/])", r"\1 \\frac{\2}{\3}"),
    (r"\\\{ ?\\\}|\\varnothing" + _END, r"\\emptyset "),
    (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=|=<", r"\\le "),
    (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=|=>", r"\\ge "),
    (r"\\neq(?![a-zA-Z])|!=|\\not ?=", r"\\ne "),
    (r"\\mod" + _END, r"\\bmod"),
    (r"\\lt" + _END, "<"),
    (r"\\gt" + _END, ">"),
    (r"(?<=[A-Za-z)])['\u2019\u2032]", r"^{\\prime}"),
    (r"\\text ?\{( ?,? ?)\}", r"\1 "),
    (
        r",? ?(?:\\text ?\{ ?,? ?(and|or),? ?\}|(?<=[\d)}\]\s])\b(and|or)\b(?![^{}]*\})"
        r"|\\(land|lor|wedge|vee)(?![a-zA-Z])) ?",
        _connective,
    ),
    (r"\\(?:approx|simeq|doteq|cong)" + _END, APPROXIMATELY),
    (r"(\d*)\.(\d*)\\overline ?(?:\{ ?(\d+) ?\}|(\d))", _fraction),
    (_BASED.pattern, _based),
    # Degrees in trigonometric functions become radians: the parser drops the degree sign.
    (rf"({_FUNCTION})(?:\({_DEGREES}\)|\{{{_DEGREES}\}}|{_DEGREES})", r"\1(\2\3\4 \\cdot \\frac{\\pi}{180})"),
]
_COMPILED = [(re.compile(pattern), replacement) for pattern, replacement in _REWRITTEN]
_SUPERSCRIPTS = re.compile("⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LEADING = re.compile(r"(?:[=≈+]|\\sim(?![a-zA-Z])|\\therefore(?![a-zA-Z])) ?")
_DISPLAY = re.compile(r"\\[\[(] ?((?:(?!\\[\[\]()]).)*?) ?\\[\])]", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![\d.,])(?<![(\[])\d{1,3}(?:,\d{3})+(?![\d,])|(?<=[(\[])\d{1,3}(?:,\d{3})+(?![\d,)\]])")
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?(?:(?:\\text\{)?([apAP])\.?[mM]\.?\}?)?")


@functools.lru_cache(maxsize=10_000)
def normalize(text: str) -> str:
    """``text`` in one notation: spaces, dashes, separators, degrees, brackets, bases and text commands."""
    text = _SUPERSCRIPTS.sub(lambda m: f"^{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = " ".join(text.translate(_TABLE).split())
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    text = _trimmed(unbraced(_trimmed(" ".join(text.split()))))
    if match := _DISPLAY.fullmatch(text):
        text = unbraced(_trimmed(match[1]))
    return text[match.end() :] if (match := _LEADING.match(text)) else text


def _trimmed(text: str) -> str:
    """``text`` without punctuation at its end; dots that stand for more digits or terms remain."""
    text = text.rstrip(" ,;")
    return text if text.endswith("..") else text.removesuffix(".").rstrip(" ,;")


@functools.lru_cache(maxsize=10_000)
def compact(text: str) -> str:
    """``text`` in one notation without spaces, except where they may separate digits."""
    return unbraced(OPTIONAL_SPACES.sub("", normalize(text)).replace("\\$", ""))


def split_top(text: str, separator: str) -> list[str]:
    """``text``, split where the regular expression ``separator`` matches outside brackets."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(rf"(?P<bracket>[(\[{{)\]}}])|(?:{separator})", text):
        if match["bracket"]:
            depth += 1 if match[0] in "([{" else -1
        elif depth <= 0:
            parts.append(text[begin : match.start()].strip())
            begin = match.end()
    parts.append(text[begin:].strip())
    return parts


def equation_members(text: str) -> list[str]:
    """``text``, split at its equality signs; cases are not split."""
    if "\\begin{cases}" in text:
        return text.split("=", text.partition("\\begin{cases}")[0].count("="))
    return split_top(text, "=")


# Words before a value that do not only introduce it.
_DENYING = frozenset(MEANINGFUL.split()) - {"is", "are", "equals", "all", "for", "ratio"}
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
    if not match or not (match["lead"] or match["kind"]) or is_relation(match["value"]):
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
    r"""The enclosing brackets of a collection and its items: `[1,2)` is ("[)", ["1", "2"]), `1,2` is ("", …).

    Set braces are "{}". Other brackets around a single item do not make a collection.
    """
    opening, inner, closing = text[:1], text[1:-1], text[-1:]
    if text.startswith("\\{") and text.endswith("\\}"):
        opening, inner, closing = "{", text[2:-2], "}"
    pairs = {"(": ")]", "[": ")]", "{": "}"}
    if len(text) > 2 and closing in pairs.get(opening, "") and min(open_brackets(inner), default=0) >= 0:
        items = split_items(inner)
        if (opening == "{" and text[0] == "\\") or (len(items) > 1 and opening != "{"):
            return opening + closing, items
    return "", split_items(text)


def is_list(gold: str, known: bool = False) -> bool:
    """Whether a gold answer is several answers: it is ``known`` to be, or has no brackets around them."""
    return known or (len(bracketed(without_thousands(normalize(gold)))[1]) > 1 and not bracketed(normalize(gold))[0])


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
        if len(re.findall(r"\\(?:pm|mp)(?![a-zA-Z])", item)) == 1:
            expanded += [re.sub(r"^\+ ?", "", re.sub(r"\\(?:pm|mp)(?![a-zA-Z])", sign, item)) for sign in "+-"]
        else:
            expanded.append(item)
    return expanded


FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|pi"
# Letters beside one another, but not `aby` in `3aby`, nor the e of `axe^{2}`.
_RUN = r"(?:\\text ?\{[A-Za-z .]*\}|(?<![A-Za-z\\])(?:(?<!\d)|(?=[A-Za-z]{4}))(?:[A-Za-z]+(?=e ?\^)|[A-Za-z]+))"
_RUNS = re.compile(
    rf"(?P<words>{_RUN}(?: *{_RUN})*)"
    r"|\\(?:text|begin|end|mathbb|operatorname) ?\{[^{}]*\}|_ ?\{[^{}]*\}|\\[a-zA-Z]+"
)
_NUMERAL, _VOWEL, _NO_PRODUCT = map(re.compile, ("[IVXLCDM]{2}", "(?i)[eio]", "(?i)[aeiou]|^[^x]*y[^x]*$"))


def is_word(letters: str, alone: bool = False) -> bool:
    """Whether ``letters`` are a word, not a product such as `xyz`; ``alone``: nothing is beside them (`no`, `IV`)."""
    if len(letters) == 2:
        return alone and bool(_NUMERAL.match(letters) or (not letters.isupper() and _VOWEL.search(letters)))
    is_product = "".join(sorted(letters)) in "abcdpqrstuvwxyz" or not _NO_PRODUCT.search(letters)
    return len(letters) > 2 and (letters.isupper() or not is_product) and letters not in FUNCTIONS.split("|")


def words_as_text(text: str) -> str:
    r"""``text`` with each word, and adjacent ones together, as a symbol that is unlike any product."""

    def replaced(match: re.Match[str]) -> str:
        words = plain(match["words"] or "")
        has_word = any(is_word(run, run == text) for run in re.findall("[A-Za-z]+", words))
        return f"\\text{{WORD {words.upper().strip(' .')}}}" if has_word else match[0]

    return _RUNS.sub(replaced, text)


def spaced(text: str, other: str) -> str:
    """``text`` with spaces in those of its words whose letters are all variables in ``other``: products."""
    variables = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", other))
    replaced = lambda m: " ".join(m[0]) if variables.issuperset(m[0]) else m[0]  # noqa: E731
    return re.sub(r"(?<![A-Za-z\\{])[A-Za-z]{3,}(?![A-Za-z}])", replaced, text)


def bases(text: str) -> list[str]:
    """The numerals of a normalized ``text`` with a base other than ten, as `12_{8}`, sorted."""
    return sorted(match[0] for match in _BASED.finditer(text))


def clock(text: str) -> tuple[int, int, int, str] | None:
    """(hours, minutes, seconds, "a", "p" or "") if ``text`` is a time of day, else None."""
    match = _TIME.fullmatch(re.sub(r"\s", "", text))
    if match is None or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0), (match[4] or "").lower()
