"""Methods that differ in one part only, and names for that part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..methods import Method, method
from ..methods.method import TEXTS
from ..study import Study

GRAINS = ("token", "block", "prefix", "sequence")  # ratios, and the methods that are named after them
# What may differ between methods that are said to differ in one part only.
NOT_COMPARED = (*TEXTS, "sampler")


def resolved(study: Study, names: Iterable[str]) -> dict[str, Method]:
    """Name → method, with the changes of the study."""
    return {name: method(name, study.methods) for name in names}


def same_but(part: str, methods: Mapping[str, Method]) -> list[dict[str, Method]]:
    """Groups of methods that differ in nothing but ``part``, two or more in each; samplers may differ."""
    groups: dict[str, dict[str, Method]] = {}
    for name, found in methods.items():
        rest = {k: v for k, v in found.data().items() if k not in (part, *NOT_COMPARED)}
        groups.setdefault(str(rest), {})[name] = found
    return [group for group in groups.values() if len(group) > 1]


def band(found: Method) -> tuple[float, float] | None:
    """The clip band (low, high) of a method; None without a clip."""
    settings = found.clip.settings
    return (float(settings["low"]), float(settings["high"])) if {"low", "high"} <= set(settings) else None


def band_text(ends: tuple[float, float] | None) -> str:
    """`0.2/0.28`."""
    return "no clip" if ends is None else "/".join(f"{end:.4f}".rstrip("0").rstrip(".") for end in ends)


def ratio_text(found: Method) -> str:
    """A ratio in words: `block K=5`, `no ratio`."""
    return "no ratio" if found.ratio.name == "none" else found.ratio.label


def by_ratio(study: Study, names: Sequence[str]) -> dict[str, str]:
    """Name of a ratio → the first of these methods that has it."""
    found: dict[str, str] = {}
    for name, one in resolved(study, names).items():
        found.setdefault(one.ratio.name, name)
    return found
