"""Presets by name, a study's changes to them, and how a method is read from data."""

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


def method(name: str, own: Mapping[str, Changes] | None = None, **changes: Any) -> Method:
    """The method called ``name``, a preset or one of a study's ``own``, with ``changes``.

    UserError names the key that is wrong. Custom functions are not imported: ``Method.check`` does that.

    >>> method("tepo").ratio.name
    'sequence'
    >>> method("mpo", ratio={"size": 3}).ratio.size
    3
    """
    return parse(name, merge(resolve(name, own), changes))


def resolve(name: str, own: Mapping[str, Changes] | None = None, _seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The data of a method, merged with those of its base.

    ``own`` are a study's methods: new ones with ``base: NAME``, or changes to a preset of the same name. A method does
    not inherit the label, summary and source of its base; a changed preset keeps them.
    """
    own = own or {}
    if name in _seen:
        raise UserError(f"methods.{name}: base: the bases form a circle ({' → '.join((*_seen, name))}).")
    if name not in own:
        return _preset(name, own, _seen)
    given = own[name]
    changes = dict(given) if isinstance(given, Mapping) else given.data()
    base = changes.pop("base", name if name in _presets() else None)
    if base is None:
        below = {}
    elif base == name:
        below = _preset(name, own, _seen)
    else:
        below = resolve(base, own, (*_seen, name))
        below = {key: value for key, value in below.items() if key not in TEXTS}
    return _with_clip_name(merge(below, changes))


def _preset(name: str, own: Mapping[str, Changes], seen: tuple[str, ...]) -> dict[str, Any]:
    if name not in _presets():
        where = f"methods.{seen[-1]}.base: " if seen else ""
        raise UserError(f"{where}no method is called {name!r}.{did_you_mean(name, [*_presets(), *own])}")
    return _with_clip_name(copy.deepcopy(_presets()[name]))


def _with_clip_name(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "clip": named_clip(data["clip"])} if "clip" in data else data


def named_clip(value: Any) -> Any:
    """A clip's mapping without a name is PPO's, and null is none."""
    if value is None:
        return {"name": "none"}
    return {"name": "ppo", **value} if isinstance(value, Mapping) else value


def parse(name: str, data: Mapping[str, Any]) -> Method:
    """The method in ``data``, as ``Method.data`` gives them. UserError names every wrong key."""
    where, problems = f"methods.{name}", list[str]()
    values: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{where}.{key}"
        if key == "penalties":
            values[key] = _penalties(value, here, problems)
        elif key in CHOICES:
            values[key] = _part(key, named_clip(value) if key == "clip" else value, here, problems)
        elif key in SECTIONS:
            values[key] = _section(SECTIONS[key], value, here, problems)
        elif key not in keys(Method) or key == "name":
            problems.append(f"{here}: unknown key.{did_you_mean(key, set(keys(Method)) - {'name'})}")
        else:
            values[key] = value if key in TEXTS else read_number(value)
    if not problems:
        try:
            return Method(name=name, **values)
        except InvalidSettings as error:
            problems = _by_key(error, where)
    raise UserError("\n".join(problems))


def _penalties(value: Any, where: str, problems: list[str]) -> tuple[Part | None, ...]:
    if value is not None and not isinstance(value, list | tuple):
        problems.append(f"{where}: expected a list (got {value!r}).")
        return ()
    return tuple(_part("penalties", item, f"{where}[{i}]", problems) for i, item in enumerate(value or ()))


def _part(slot: str, value: Any, where: str, problems: list[str]) -> Part | None:
    """The part that the key ``slot`` of a method has; None, and its problems, if it is wrong."""
    data = {"name": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        problems.append(f"{where}: expected a name, or a mapping with 'name' and parameters (got {value!r}).")
        return None
    called = data["name"]
    kind = Custom if ":" in called else CHOICES[slot].get(called)
    if kind is None:
        what = "penalty" if slot == "penalties" else slot
        hint = did_you_mean(called, CHOICES[slot])
        problems.append(f"{where}: no {what} is called {called!r}.{hint} Your own: 'package.module:function'.")
        return None
    try:
        return kind.of(data, called)
    except InvalidSettings as error:
        problems += _by_key(error, where)
        return None


def _section(kind: type[Settings], value: Any, where: str, problems: list[str]) -> Settings | None:
    if value is not None and not isinstance(value, Mapping):
        problems.append(f"{where}: expected a mapping (got {value!r}).")
        return None
    try:
        return kind.of(value or {})
    except InvalidSettings as error:
        problems += _by_key(error, where)
        return None


def _by_key(error: InvalidSettings, where: str) -> list[str]:
    """Each problem with the key that it is under."""
    return [f"{'.'.join(filter(None, [where, key]))}: {problem}" for key, problem in error.problems.items()]
