"""Presets by name, a study's changes to them, and parsing of methods."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any, Protocol

import yaml

from ..errors import UserError, did_you_mean
from ..merging import merge
from ..settings import InvalidSettings, Settings, keys, read_number
from .method import CHOICES, TEXTS, Method, MtpHeads, Sampler
from .part import Custom, Part


class HasData(Protocol):
    """Changes that a study file has checked."""

    def data(self) -> dict[str, Any]:
        """The keys that are given."""


Changes = Mapping[str, Any] | HasData
SECTIONS: dict[str, type[Settings]] = {"sampler": Sampler, "mtp_heads": MtpHeads}


@functools.cache
def _read(file: str) -> dict[str, dict[str, Any]]:
    presets: dict[str, dict[str, Any]] = yaml.safe_load(resources.files(__package__).joinpath(file).read_text("utf-8"))
    return presets


def _presets() -> dict[str, dict[str, Any]]:
    return _read("presets.yaml") | _read("comparison_presets.yaml")


def method_names() -> list[str]:
    """The presets of published methods, in the order of their table."""
    return list(_read("presets.yaml"))


def comparison_names() -> list[str]:
    """The presets that differ in the ratio and its clip alone, to compare ratios with."""
    return list(_read("comparison_presets.yaml"))


def method(name: str, study_methods: Mapping[str, Changes] | None = None, **changes: Any) -> Method:
    """The method called ``name``, a preset or one of ``study_methods``, with ``changes``.

    UserError names the wrong key. Custom functions are not imported here, but by ``Method.check``.

    >>> method("tepo").ratio.name
    'sequence'
    >>> method("mpo", ratio={"size": 3}).ratio.size
    3
    """
    return parse(name, merge(resolve(name, study_methods), changes))


def resolve(
    name: str, study_methods: Mapping[str, Changes] | None = None, _seen: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The data of a method, merged with those of its base.

    ``study_methods``: new ones with ``base: NAME``, or changes to a preset of the same name. A method does
    not inherit the label, summary and source of its base; a changed preset keeps them.
    """
    study_methods = study_methods or {}
    if name in _seen:
        raise UserError(f"methods.{name}: base: the bases form a cycle ({' → '.join((*_seen, name))}).")
    if name not in study_methods:
        return _preset(name, study_methods, _seen)
    definition = study_methods[name]
    changes = dict(definition) if isinstance(definition, Mapping) else definition.data()
    base = changes.pop("base", name if name in _presets() else None)
    if base is None:
        below = {}
    elif base == name:
        below = _preset(name, study_methods, _seen)
    else:
        below = resolve(base, study_methods, (*_seen, name))
        below = {key: value for key, value in below.items() if key not in TEXTS}
    return _with_clip_name(merge(below, changes))


def _preset(name: str, study_methods: Mapping[str, Changes], seen: tuple[str, ...]) -> dict[str, Any]:
    if name not in _presets():
        where = f"methods.{seen[-1]}.base: " if seen else ""
        raise UserError(f"{where}no method is called {name!r}.{did_you_mean(name, [*_presets(), *study_methods])}")
    return _with_clip_name(copy.deepcopy(_presets()[name]))


def _with_clip_name(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "clip": named_clip(data["clip"])} if "clip" in data else data


def named_clip(value: Any) -> Any:
    """The value of the key `clip` with a name: a mapping without one is PPO's clip, null is no clip."""
    if value is None:
        return {"name": "none"}
    return {"name": "ppo", **value} if isinstance(value, Mapping) else value


def parse(name: str, data: Mapping[str, Any]) -> Method:
    """The method in ``data``, as ``Method.data`` gives them. UserError names every wrong key."""
    values, problems = dict[str, Any](), dict[str, str]()
    for key, value in data.items():
        try:
            values[key] = _value(key, value)
        except InvalidSettings as error:
            problems |= _under(key, error)
    if not problems:
        try:
            return Method(name=name, **values)
        except InvalidSettings as error:
            problems = dict(error.problems)
    by_key = _under(f"methods.{name}", InvalidSettings(problems))
    raise UserError("\n".join(f"{key}: {problem}" for key, problem in by_key.items()))


def _value(key: str, value: Any) -> Any:
    """The value of a method's key. InvalidSettings if it is wrong."""
    if key == "penalties":
        return _penalties(value)
    if key in CHOICES:
        return _part(key, named_clip(value) if key == "clip" else value)
    if key in SECTIONS:
        if value is not None and not isinstance(value, Mapping):
            raise InvalidSettings({"": f"expected a mapping (got {value!r})."})
        return SECTIONS[key].of(value or {})
    if key not in keys(Method) or key == "name":
        raise InvalidSettings({"": f"unknown key.{did_you_mean(key, set(keys(Method)) - {'name'})}"})
    return value if key in TEXTS else read_number(value)


def _penalties(value: Any) -> tuple[Part, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise InvalidSettings({"": f"expected a list (got {value!r})."})
    parts, problems = list[Part](), dict[str, str]()
    for i, item in enumerate(value or ()):
        try:
            parts.append(_part("penalties", item))
        except InvalidSettings as error:
            problems |= _under(f"[{i}]", error)
    if problems:
        raise InvalidSettings(problems)
    return tuple(parts)


def _part(slot: str, value: Any) -> Part:
    """The part under the key ``slot`` of a method. InvalidSettings if it is wrong."""
    data = {"name": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        raise InvalidSettings({"": f"expected a name, or a mapping with 'name' and parameters (got {value!r})."})
    called = data["name"]
    kind = Custom if ":" in called else CHOICES[slot].get(called)
    if kind is None:
        what = "penalty" if slot == "penalties" else slot
        hint = did_you_mean(called, CHOICES[slot])
        raise InvalidSettings({"": f"no {what} is called {called!r}.{hint} Your own: 'package.module:function'."})
    return kind.of(data, called)


def _under(where: str, error: InvalidSettings) -> dict[str, str]:
    """The problems by their full keys, including that of the section."""
    return {
        f"{where}{key}" if key.startswith("[") else ".".join(filter(None, [where, key])): problem
        for key, problem in error.problems.items()
    }
