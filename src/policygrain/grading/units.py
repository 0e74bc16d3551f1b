r"""Units, and other words after a number: `5\text{ cm}`, `12 apples`, `3 million`."""

from __future__ import annotations

import functools
import re
from importlib import resources

import yaml

_WORDS = yaml.safe_load(resources.files(__package__).joinpath("units.yaml").read_text("utf-8"))
MEANINGFUL = frozenset(_WORDS["meaningful"].split())
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
DEGREE, RADIAN, PERCENT, UNITS_OF_ANY_KIND = "degree", "radian", "percent", "units"

_UNITS: dict[str, str] = {}
for _entry in _WORDS["units"].split(";"):
    _names = _entry.split()
    _plurals = [_name.replace("+", "s") for _name in _names if _name.endswith("+")]
    _names = [_name.rstrip("+") for _name in _names]
    _UNITS |= dict.fromkeys([*_names, *_plurals], _names[0])

# What may be a unit at the end of a quantity: commands of text with powers, a degree or percent sign, or plain letters.
_END = re.compile(
    r" ?(?P<command>(?:(?:/|\\cdot|\\times|\*)? ?\\text ?\{(?:[^{}]|\{[^{}]*\})*\} ?(?:\^ ?(?:\{ ?-?\d ?\}|\d) ?)?)+"
    r"|\\?%|\^\\circ ?(?:\\text ?\{ ?[CF] ?\}|[CF])?)$"
    r"|(?<=[\d)}])(?P<space> ?)(?P<bare>[A-Za-zΩÅ°/. ]*[A-Za-zΩÅ])\.?(?P<power>\^\{?[23]\}?)?$"
)
_CURRENCY = re.compile(r"^([-+]? ?)(?:\\text ?\{ ?)?(\\\$|euro|yen|GBP|Rs\.?|USD)(?: ?\})? ?(.+)$")
_MARKUP = re.compile(r"\\(?:text|cdot|times)|[{}^*~\\]")
_TEMPERATURE = re.compile(r"(?:deg(?:ree)?s? )?(?:(?<= )([CF])|([cC])elsius|([fF])ahrenheit)")
_PARTS = re.compile(r"[^\W\d]+|°[CF]|[°Ω%$/]|-?\d")
_HARMLESS = re.compile(r"[A-Za-z][A-Za-z'-]{2,}|of|a|an|in|on|st|nd|rd|th")


@functools.lru_cache(maxsize=10_000)
def read_quantity(text: str, bare: bool) -> tuple[str, str]:
    r"""Value and unit, "" if it has none, of a normalized ``text``; with ``bare``, a unit may be in letters: `5 cm`.

    Words that may change the value are not a unit: they stay in the value, which then is not equal to the number alone.
    """
    if currency := _CURRENCY.fullmatch(text):
        value, words = read_quantity(currency[1] + currency[3], bare)
        return (text, "") if words == PERCENT else (value, words or _UNITS[currency[2].strip("\\.")])
    match = _END.search(text)
    if match is None or not (value := text[: match.start()].strip()) or (match["bare"] and not bare):
        return text, ""
    content = match["command"] or match["bare"] + (match["power"] or "")
    words = " ".join(_MARKUP.sub(" ", content.replace("^\\circ", "deg ")).split()).strip(".")
    scale, _, rest = words.partition(" ")
    if scale in SCALES:
        value, words = f"{value} \\cdot 10^{{{SCALES[scale]}}}", rest
    is_text = match["bare"] is None  # in a command, so no product
    if not words:
        return value, ""
    if (is_text or len(words) > 1 or (match["space"] and words in "mgsh")) and (known := _known(words)):
        return value, known
    others = [word.strip(".,") for word in words.split()]
    after_variable = re.search(r"(?<![A-Za-z\\])[A-Za-z]$", value)  # they may say something about it
    if after_variable or any({word.lower(), word.lower().removesuffix("s")} & MEANINGFUL for word in others):
        return text, ""
    # Plain letters are a word if there are four or more: `5 apples`, but `3 abc` is a product.
    harmless = map(_HARMLESS.fullmatch, others) if is_text else (w.isalpha() and len(w) > 3 for w in others)
    if not ((is_text or match["space"]) and all(harmless)):
        return text, ""
    return value, " ".join(word.lower().removesuffix("s") for word in others)


def _known(words: str) -> str | None:
    """A unit such as `km / h`, `m / s 2` or `ft 2` (square feet), in one notation; None if a part is unknown."""
    if match := _TEMPERATURE.fullmatch(words):
        return "celsius" if (match[1] or match[2] or match[3]) in "cC" else "fahrenheit"
    words = re.sub(r"\b(?:square|sq)\.? (\S+)", r"\1 2", re.sub(r"\b(?:cubic|cu)\.? (\S+)", r"\1 3", words))
    words = words.replace(" per ", " / ")
    if re.fullmatch(r"units?(?: [23])?", words):
        return UNITS_OF_ANY_KIND
    parts = _PARTS.findall(words)
    # Case matters in short names: `m` and `M`, `mW` and `MW`.
    names = [_UNITS.get(part) or (_UNITS.get(part.lower()) if len(part) > 2 else None) for part in parts]
    unread = [part for part, name in zip(parts, names, strict=True) if not name and not re.fullmatch(r"/|-?\d", part)]
    if unread or not any(names) or _PARTS.sub("", words).strip(" ."):
        return None
    return " ".join(name or part for part, name in zip(parts, names, strict=True))
