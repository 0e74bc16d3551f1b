"""Writes the tables of parts and presets in docs/methods/README.md: python docs/presets.py (`make schema`)."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from policygrain.objective import Method, Sampler, comparison_names, method, method_names
from policygrain.objective.method import CHOICES
from policygrain.objective.part import Part

METHODS = Path(__file__).resolve().parent / "methods"


def fill(text: str) -> str:
    """The page with its tables, each between `<!-- NAME -->` and `<!-- end -->`, written anew."""
    for name, rows in {"parts": parts(), "presets": presets(), "comparison": comparison()}.items():
        text, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda m, rows=rows: f"{m[1]}\n{rows}\n\n{m[2]}",  # type: ignore[misc]
            text,
            flags=re.S,
        )
        assert found == 1, name
    return text


def parts() -> str:
    """Every part of every key with its parameters, from the classes; other packages may have registered more."""
    rows = [
        [key, f"`{name}`", _about(kind), _parameters(kind)]
        for key, choices in CHOICES.items()
        for name, kind in choices.items()
        if kind.__module__.startswith("policygrain.objective.")
    ]
    return _table(["key", "name", "what it is", "parameters"], rows)


def presets() -> str:
    """Every preset with the page whose title names it, and its parts."""
    pages = {}
    for path in sorted(METHODS.glob("*.md")):
        for name in re.findall(r"`(\w+)`", path.read_text().partition("\n")[0]):
            pages[name] = f"[{path.stem}]({path.name})"
    rows = [[f"`{name}`", pages.get(name, "[newer](newer.md)"), *_chosen(method(name))] for name in method_names()]
    return _table(["preset", "page", "advantage", "ratio", "clip", "aggregation", "penalties", "sampler, anchor"], rows)


def comparison() -> str:
    """The presets to compare ratios with."""
    rows = []
    for name in comparison_names():
        found = method(name)
        ends = found.clip.settings
        clip_range = f"{ends['low']:g} / {ends['high']:g}" if ends else "–"
        rows.append([f"`{name}`", found.ratio.label, clip_range, found.summary])
    return _table(["preset", "ratio", "clip low / high", "what it is"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def _about(kind: type[Part]) -> str:
    """The first paragraph of the docstring, on one line."""
    return " ".join(str(inspect.getdoc(kind)).partition("\n\n")[0].split()).replace("|", "\\|")


def _parameters(kind: type[Part]) -> str:
    """`low: 0.2`, `high: 0.2`: the parameters with their defaults."""
    shown = (field for field in fields(kind) if field.name != "name")
    return ", ".join(f"`{field.name}: {json.dumps(field.default)}`" for field in shown) or "–"


def _chosen(preset: Method) -> list[str]:
    """Each part of a preset with its numbers, and the other settings that differ from the defaults."""
    advantage, clip, aggregation = (
        f"{p.name}{_settings(p)}" for p in (preset.advantage, preset.clip, preset.aggregation)
    )
    default = asdict(Sampler())
    sampler = {key: value for key, value in asdict(preset.sampler).items() if value != default[key]}
    sampler |= {"anchor": preset.anchor} if preset.anchor != "old" else {}
    sampler |= {"mtp_heads": preset.n_mtp_heads} if preset.n_mtp_heads else {}
    penalties = ", ".join(f"{part.name}{_settings(part)}" for part in preset.penalties)
    rest = ", ".join(map(_setting, sampler.items()))
    return [advantage, preset.ratio.label, clip, aggregation, penalties or "–", rest or "–"]


def _settings(part: Part) -> str:
    numbers = [key for key, value in part.settings.items() if isinstance(value, float | int) and value is not False]
    shown = {key: value for key, value in part.settings.items() if key in numbers or key in part.changed}
    return f": {', '.join(map(_setting, shown.items()))}" if shown else ""


def _setting(item: tuple[str, Any]) -> str:
    key, value = item
    return key if value is True else f"{key} {value:g}" if isinstance(value, float) else f"{key} {value or 'none'}"


if __name__ == "__main__":
    page = METHODS / "README.md"
    page.write_text(fill(page.read_text()))
