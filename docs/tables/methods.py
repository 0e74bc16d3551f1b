"""Tables on methods: the parts with their parameters, and the presets to compare ratios with."""

from __future__ import annotations

import inspect
import json

from policygrain.objective import comparison_names, method
from policygrain.objective.method import CHOICES
from policygrain.objective.part import Part
from policygrain.settings import keys

from .common import table


def parts() -> str:
    """Every part of every key, with its formula and its parameters, from the classes."""
    rows = []
    for key, choices in CHOICES.items():
        for name, kind in choices.items():
            module = kind.__module__.removeprefix("policygrain.")
            link = f"[`{module}:{kind.__name__}`](../../src/policygrain/{module.replace('.', '/')}.py)"
            rows.append([key, f"`{name}`", _about(kind), _parameters(kind), link])
    return table(["part", "name", "what it is", "parameters", "code"], rows)


def _about(kind: type[Part]) -> str:
    """The first paragraph of the docstring, on one line."""
    return " ".join(str(inspect.getdoc(kind)).partition("\n\n")[0].split()).replace("|", "\\|")


def _parameters(kind: type[Part]) -> str:
    """`low: 0.2`, `high: 0.2`: the parameters with their defaults."""
    fields = (field for name, (_, field) in keys(kind).items() if name != "name")
    return ", ".join(f"`{field.name}: {json.dumps(field.default)}`" for field in fields) or "–"


def comparison() -> str:
    """The presets to compare ratios with."""
    rows = []
    for name in comparison_names():
        found = method(name)
        ends = found.clip.settings
        clip_range = f"{ends['low']:g} / {ends['high']:g}" if ends else "–"
        rows.append([f"`{name}`", found.ratio.label, clip_range, found.summary])
    return table(["preset", "ratio", "clip low / high", "what it is"], rows)


BLOCKS = {"parts": parts, "comparison": comparison}
