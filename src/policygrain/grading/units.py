r"""Units, and other words after a quantity: `5\text{ cm}`, `12 apples`, `3 million`."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

# Units, each with other names of it; a name with + also has a plural with s.
UNITS = """
mm millimeter+ millimetre+; cm centimeter+ centimetre+; dm decimeter+; m meter+ metre+; km kilometer+ kilometre+;
nm nanometer+; um micrometer+ micron+ μm µm; in inch inches; ft foot feet; yd+ yard+; mi mile+; angstrom+ Å;
pc parsec+; kpc; Mpc; AU; ly lightyear+; acre+; hectare+;
mg milligram+; g gram+ gm+; kg+ kilogram+; lb+ pound+; oz ounce+; ton+ tonne+; mol mole+;
ms millisecond+; s sec+ second+; min+ minute+; h hr+ hour+; day+; week+; month+; yr+ year+;
ml mL milliliter+ millilitre+; l L liter+ litre+; gal gallon+; mph; Hz hertz; kHz kilohertz; MHz megahertz;
GHz gigahertz; degree+ deg; radian+ rad+; celsius °C; fahrenheit °F; K kelvin+;
dollar+ USD usd \\$; cent+; euro+ EUR; sterling GBP; rupee+ Rs rs INR; yuan RMB CNY; yen JPY;
N newton+; dyne+; J joule+; kJ kilojoule+; erg+; eV electronvolt+; keV; MeV; GeV; W watt+; kW kilowatt+; V volt+;
A amp+ ampere+; ohm+ Ω; C coulomb+; T tesla+; Pa pascal+; kPa kilopascal+; atm atmosphere+
"""

# A quantity with one of these words is not its number alone: they change the value, name another one or deny it.
MEANINGFUL = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety dozen dozens score pair
pairs couple gross hundred thousand million billion trillion hundreds thousands millions billions trillions
half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth
eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths percent percents percentage pct
permille squared cubed square cube root power powers exponent factorial times plus minus over divided
multiplied by double twice triple point and or nor not no none anything otherwise else unless
except but if when where for all every everything either both neither negative positive mod modulo base log ln
exp sin cos tan cot csc to through until between at least most more less greater fewer larger smaller than
about around approximately roughly nearly almost infinity infinite infinitely inf does exist undefined
impossible unknown wrong incorrect false maybe perhaps possibly probably is are was equals equal reciprocal
inverse conjugate complex imaginary i e pi many several first last choice option versus vs ratio
"""

_UNITS: dict[str, str] = {}
for _entry in UNITS.split(";"):
    _names = _entry.split()
    _plurals = [_name.replace("+", "s") for _name in _names if _name.endswith("+")]
    _names = [_name.rstrip("+") for _name in _names]
    _UNITS |= dict.fromkeys([*_names, *_plurals], _names[0])
_COMPOUND = {
    "kmh": {"km": 1, "h": -1},
    "kph": {"km": 1, "h": -1},
    "kmph": {"km": 1, "h": -1},
    "mph": {"mi": 1, "h": -1},
}
# Single letters that are units even in plain letters after a space: `5 m`.
_SHORT = frozenset("mgsh")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ANY_SCALE = "|".join(_SCALES)
_MEANINGFUL = frozenset(MEANINGFUL.split())

_TEXT = r"\\(?:text|mathrm|rm|operatorname|mathit|mathbf) ?\{(?P<content>[^{}]*)\} ?"
_POWER = r"(?:\^ ?(?:\{ ?(?P<braced>-?\d) ?\}|(?P<digit>\d)) ?)?"
_TEXT_AT_END = re.compile(rf"(?P<joint>/|\\cdot|\\times|\*)? ?(?:{_TEXT}){_POWER}$")
_BARE_AT_END = re.compile(
    r"(?<=[\d)}])(?P<space> ?)(?P<words>[A-Za-zΩÅ%°/. ]*?[A-Za-zΩÅ])\.?(?:\^\{?(?P<power>[23])\}?)?$"
)
_CIRCLE = re.compile(r" ?\^\\circ ?$")
_SCALE_AT_END = re.compile(
    rf"(?:\\text ?\{{ ?(?P<text>{_ANY_SCALE}) ?(?P<rest>[^{{}}]*)\}}|(?<=[\d}} ])(?P<bare>{_ANY_SCALE}))(?P<more>.*)$"
)
_ORDINAL = re.compile(r"(?<=\d)(?:\^ ?\{ ?)?(?:\\(?:text|mathrm) ?\{ ?)?(?:st|nd|rd|th) ?\}? ?\}?$")
_CURRENCY = re.compile(
    r"^(?P<sign>[-+]? ?)(?P<name>\\\$|\\text ?\{ ?(?:euro|yen|pound sterling|Rs\.?|USD) ?\}|Rs\.? ?|USD ?)"
)
_PERCENT = re.compile(
    r" ?(?:\\text ?\{ ?(?:percent(?:age)?|pct|per cent|\\?%) ?\}|(?<=[\d}) ])(?:percent(?:age)?|pct)|\\?%)$"
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]{2,}|of|a|an|in|on")
_RATE = re.compile(r"/|\bper\b")

Unit = tuple[tuple[str, int], ...]  # ("m", 1), ("s", -2); empty: words that are no unit, such as apples


class Quantity(NamedTuple):
    """A quantity as text: its value and its unit, None if it has none."""

    value: str
    unit: Unit | None


DEGREE: Unit = (("degree", 1),)
RADIAN: Unit = (("radian", 1),)
PERCENT: Unit = (("percent", 1),)


@functools.lru_cache(maxsize=10_000)
def read_quantity(text: str, bare: bool) -> Quantity:
    r"""Value and unit of a normalized ``text``; with ``bare``, a unit may be in plain letters: `5 cm`.

    Words that may change the value are no unit; they stay in the value, which then differs from the number alone.
    """
    powers: dict[str, int] = {}
    has_unit = False
    if (match := _CURRENCY.match(text)) and (rest := text[match.end() :].strip()):
        name = re.sub(r"\\text|[{}. ]", "", match["name"])
        powers[_UNITS.get(name, "sterling" if name == "poundsterling" else name)] = 1
        text, has_unit = match["sign"] + rest, True
    if match := _PERCENT.search(text):
        powers["percent"], text, has_unit = 1, text[: match.start()], True
    text = _scaled(text)
    while True:
        rest, cut = _cut_unit(text, bare)
        if cut is None or not rest:
            break
        text, has_unit = rest, True
        for unit, power in cut.items():
            powers[unit] = powers.get(unit, 0) + power
    text = _scaled(text)
    known = tuple(sorted((u, p) for u, p in powers.items() if p and u != "unit")) if has_unit else None
    return Quantity(text.strip(), known)


def differ(gold: Unit | None, given: Unit | None) -> bool:
    """Whether both are known units and not the same; a missing unit is not a difference."""
    return bool(gold and given and gold != given)


def _scaled(text: str) -> str:
    """``text`` with `3 million` written as a product."""
    match = _SCALE_AT_END.search(text)
    if not match or not (head := text[: match.start()].strip()):
        return text
    rest = f"\\text{{ {match['rest']}}}" if match["rest"] else match["more"] or ""
    if match["rest"] and match["more"]:
        return text
    exponent = _SCALES[match["text"] or match["bare"]]
    return f"{head} \\cdot 10^{{{exponent}}}{rest}"


def _cut_unit(text: str, bare: bool) -> tuple[str, dict[str, int] | None]:
    """``text`` without the unit at its end, and that unit's powers; None if there is none."""
    if match := _CIRCLE.search(text):
        return text[: match.start()], {"degree": 1}
    if match := _ORDINAL.search(text):
        return text[: match.start()], {}
    if match := _TEXT_AT_END.search(text):
        power = int(match["braced"] or match["digit"] or 1)
        rest = text[: match.start()].strip()
        if rest.endswith("^\\circ") and match["content"].strip() in ("C", "F", "Celsius", "Fahrenheit"):
            name = "celsius" if match["content"].strip()[0] == "C" else "fahrenheit"
            return rest[: -len("^\\circ")].strip(), {name: 1}
        powers = _powers(match["content"], True)
        if powers is None or (powers == {} and power != 1):
            return text, None
        sign = -1 if match["joint"] == "/" else 1
        return rest, {unit: n * power * sign for unit, n in powers.items()}
    if bare and (match := _BARE_AT_END.search(text)):
        powers = _powers(match["words"], False, spaced=bool(match["space"]))
        if powers is not None:
            return text[: match.start()], {u: n * int(match["power"] or 1) for u, n in powers.items()}
    return text, None


def _powers(content: str, text: bool, spaced: bool = True) -> dict[str, int] | None:
    """The units in ``content``, {} if it is words that leave the value as it is, None if it is neither."""
    content = re.sub(r"\^ ?\{? ?(\d) ?\}?", r"\1", content.strip(" ~."))
    if not content:
        return {} if text else None
    if content.lower() in ("degrees celsius", "degree celsius", "celsius"):
        return {"celsius": 1}
    if content.lower() in ("degrees fahrenheit", "fahrenheit"):
        return {"fahrenheit": 1}
    known = _known(content)
    if known is not None and (text or _readable(content, spaced)):
        return known
    others = [word.strip(".") for word in content.split()]
    if any(word.lower() in _MEANINGFUL for word in others):
        return None
    if text:
        return {} if all(_WORD.fullmatch(word) for word in others) else None
    # In plain letters, four make a word: `5 apples`, but `3 abc` is a product.
    return {} if spaced and all(word.isalpha() and len(word) > 3 for word in others) else None


def _readable(content: str, spaced: bool) -> bool:
    """Whether plain letters are a unit and no product of variables: two letters at least, or one after a space."""
    return len(content) > 1 or (spaced and content in _SHORT)


def _known(content: str) -> dict[str, int] | None:
    """Powers of a unit such as `km/h`, `m/s2` or `square feet`."""
    powers: dict[str, int] = {}
    for place, part in enumerate(_RATE.split(content)):
        factor = 1
        for word in re.split(r"[ .*]|\\cdot", part.strip()):
            if not word:
                continue
            if word.lower() in ("square", "sq", "cubic", "cu"):
                factor = 2 if word.lower().startswith("s") else 3
                continue
            match = re.fullmatch(r"([^\d]+)(\d)?", word)
            if match is None:
                return None
            unit = _UNITS.get(match[1])
            if unit is None and len(match[1]) > 2:  # case matters in `m` and `M`, `mW` and `MW`
                unit = _UNITS.get(match[1].lower())
            compound = _COMPOUND.get(match[1].lower())
            if compound is None and unit is None and match[1].lower() not in ("unit", "units"):
                return None
            sign = (-1 if place else 1) * factor * int(match[2] or 1)
            for name, power in (compound or {unit or "unit": 1}).items():
                powers[name] = powers.get(name, 0) + power * sign
            factor = 1
        if factor != 1:
            return None  # `square` without what is squared
    return powers or None
