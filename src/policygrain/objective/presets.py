"""Presets by name, changes to them, and methods from data."""

from __future__ import annotations

import copy
import functools
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import resources
from typing import Any

import yaml

from ..errors import UserError, did_you_mean, explained
from ..merging import merge
from .method import CHOICES, TEXTS, Method, MtpHeads, Sampler
from .part import Custom, Part

SECTIONS = {"sampler": Sampler, "mtp_heads": MtpHeads}


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


def method(name: str, **changes: Any) -> Method:
    """The preset called ``name``, with ``changes``.

    UserError names the wrong key. Custom functions are not imported here, but by ``Method.check``.

    >>> method("tepo").ratio.name
    'sequence'
    >>> method("mpo", ratio={"size": 3}).ratio.size
    3
    """
    return build(name, merge(_data(name, {}), changes)) if changes else _preset(name)


@functools.cache
def _preset(name: str) -> Method:
    return build(name, _data(name, {}))


def resolved_methods(given: Mapping[str, Any]) -> dict[str, Method]:
    """Methods as under `methods` in a study file: new ones with ``base: NAME``, or changes to a preset of that name.

    A method does not inherit the label, summary and source of its base; a changed preset keeps them.
    """
    return {name: build(name, _data(name, given)) for name in given}


def _data(name: str, own: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The data of a method, merged with those of its base; ``above``: the methods of which it is the base."""
    if name not in own:
        return _preset_data(name, own, above)
    where, changes = f"methods.{name}", own[name]
    if not isinstance(changes, Mapping):
        raise UserError(f"{where}: expected a mapping with a base and changes of it (got {reprlib.repr(changes)}).")
    _check_known(changes, _keys(Method) - {"name"}, where)
    base = changes.get("base", name if name in _presets() else None)
    if not isinstance(base, str | None):
        raise UserError(f"{where}.base: expected the name of a method (got {reprlib.repr(base)}).")
    if base in above:
        raise UserError(f"{where}.base: the bases form a cycle ({' → '.join((*above, name, base))}).")
    if base == name:
        return _with_clip_name(merge(_preset_data(name, own, above), {**changes, "base": None}))
    below = {} if base is None else _data(base, own, (*above, name))
    return _with_clip_name(merge({key: value for key, value in below.items() if key not in TEXTS}, changes))


def _preset_data(name: str, own: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    if name not in _presets():
        where = f"methods.{above[-1]}.base: " if above else ""
        raise UserError(f"{where}no method is called {name!r}.{did_you_mean(name, [*_presets(), *own])}")
    return _with_clip_name(copy.deepcopy(_presets()[name]))


def _with_clip_name(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "clip": named_clip(data["clip"])} if "clip" in data else data


def named_clip(value: Any) -> Any:
    """The value of the key `clip` with a name: a mapping without one is PPO's clip, null is no clip."""
    if value is None:
        return {"name": "none"}
    return {"name": "ppo", **value} if isinstance(value, Mapping) else value


def build(name: str, data: Mapping[str, Any]) -> Method:
    """The method in ``data``, as ``Method.data`` gives it. UserError names the wrong key."""
    where = f"methods.{name}"
    values: dict[str, Any] = {"name": name}
    for key, value in data.items():
        place = f"{where}.{key}"
        if key == "penalties":
            if not isinstance(value, list | tuple | None):
                raise UserError(f"{place}: expected a list (got {reprlib.repr(value)}).")
            values[key] = tuple(_part("penalties", item, f"{place}[{i}]") for i, item in enumerate(value or ()))
        elif key in CHOICES:
            values[key] = _part(key, named_clip(value) if key == "clip" else value, place)
        elif key in SECTIONS:
            values[key] = _made(SECTIONS[key], {} if value is None else value, place)
        else:
            values[key] = value
    made: Method = _made(Method, values, where)
    return made


def _part(key: str, value: Any, where: str) -> Part:
    """The part of the key ``key`` of a method."""
    data = {"name": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping) or not isinstance(name := data.get("name"), str):
        raise UserError(
            f"{where}: expected a name, or a mapping with 'name' and parameters (got {reprlib.repr(value)})."
        )
    if ":" in name:
        values: Mapping[str, Any] = {"name": name, "parameters": {k: v for k, v in data.items() if k != "name"}}
    elif name in CHOICES[key]:
        values = data
    else:
        hint = did_you_mean(name, CHOICES[key])
        kind = key.replace("penalties", "penalty")
        raise UserError(f"{where}: no {kind} is called {name!r}.{hint} Your own: 'package.module:function'.")
    part: Part = _made(CHOICES[key].get(name, Custom), values, where)
    return part


def _made(kind: type[Any], values: Any, where: str) -> Any:
    """An instance of a dataclass. UserError names the wrong key."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: expected a mapping (got {reprlib.repr(values)}).")
    _check_known(values, _keys(kind), where)
    try:
        return _reader(kind)(dict(values))  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(explained(error, where)) from error


def _keys(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}


def _check_known(values: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in values:
        if key not in known:
            others = known - {"name"}
            hint = did_you_mean(str(key), others) if others else " It has no parameters."
            raise UserError(f"{where}.{key}: unknown key.{hint}")


@functools.cache
def _reader(kind: type[Any]) -> Callable[[dict[str, Any]], Any]:
    """Makes an instance; pydantic checks types and bounds where it is installed, as it is in a study."""
    try:
        from pydantic import TypeAdapter
    except ModuleNotFoundError:
        return lambda values: kind(**values)
    return TypeAdapter(kind).validate_python
