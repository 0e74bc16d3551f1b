"""Presets by name, and methods laid over them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from ..errors import UserError, did_you_mean
from .spec import Method


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("presets.yaml").read_text()
    return {name: data for name, data in yaml.safe_load(text).items() if not name.startswith(".")}


def method_names() -> list[str]:
    """The presets, in the order of their table."""
    return list(_presets())


def preset_data(
    name: str, own: Mapping[str, Mapping[str, Any]] | None = None, _seen: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What a method's data are once everything it is laid over is resolved.

    ``own`` are a study's methods: new ones with ``base: NAME``, or changes to a preset of the same name. A mapping is
    merged key by key (one that names another function replaces it whole); lists and values replace.
    """
    own = own or {}
    if name in _seen:
        raise UserError(f"methods.{name}: is laid over itself ({' → '.join((*_seen, name))}).")
    if name not in own:
        if name not in _presets():
            raise UserError(f"no method is called {name!r}.{did_you_mean(name, [*_presets(), *own])}")
        return copy.deepcopy(_presets()[name])
    changes = dict(own[name])
    base = changes.pop("base", name if name in _presets() else None)
    if base is None:
        return changes
    below = preset_data(base, {}) if base == name else preset_data(base, own, (*_seen, name))
    return merge(below, changes)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below``."""
    merged = dict(copy.deepcopy(dict(below)))
    for key, value in above.items():
        old: Any = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping) and key != "summary":
            old = {"name": old}
        same = isinstance(old, Mapping) and isinstance(value, Mapping)
        # A clip without a name is PPO's.
        old_name = old.get("name", "ppo" if key == "clip" else None) if same else None
        if same and value.get("name", old_name) == old_name:
            merged[key] = merge(old, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def method(name: str, own: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> Method:
    """The method called ``name``: a preset, or one of a study's ``own``. ``changes`` are laid over it.

    >>> method("tepo").ratio.name
    'sequence'
    >>> method("mpo", ratio={"size": 3}).ratio.params["size"]
    3
    """
    return Method.parse(name, merge(preset_data(name, own), changes))
