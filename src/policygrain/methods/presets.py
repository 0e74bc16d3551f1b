"""Presets by name, and a study's changes to them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import UserError, did_you_mean
from ..merging import merge
from .method import Method
from .parts import CHOICES, names
from .schema import MethodChanges, named_clip

Changes = Mapping[str, Any] | MethodChanges


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("presets.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return presets


def method_names() -> list[str]:
    """The presets, in the order of their table."""
    return list(_presets())


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
    not inherit the summary and source of its base; a changed preset keeps them.
    """
    own = own or {}
    if name in _seen:
        raise UserError(f"methods.{name}: base: the bases form a circle ({' → '.join((*_seen, name))}).")
    if name not in own:
        return _preset(name, own, _seen)
    given = own[name]
    changes = given.data() if isinstance(given, MethodChanges) else dict(given)
    base = changes.pop("base", name if name in _presets() else None)
    if base is None:
        below = {}
    elif base == name:
        below = _preset(name, own, _seen)
    else:
        below = resolve(base, own, (*_seen, name))
        below = {key: value for key, value in below.items() if key not in ("summary", "source")}
    return _with_clip_name(merge(below, changes))


def _preset(name: str, own: Mapping[str, Changes], seen: tuple[str, ...]) -> dict[str, Any]:
    if name not in _presets():
        where = f"methods.{seen[-1]}.base: " if seen else ""
        raise UserError(f"{where}no method is called {name!r}.{did_you_mean(name, [*_presets(), *own])}")
    return _with_clip_name(copy.deepcopy(_presets()[name]))


def _with_clip_name(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "clip": named_clip(data["clip"])} if "clip" in data else data


def parse(name: str, data: Mapping[str, Any]) -> Method:
    """The method in ``data``, as ``Method.data`` gives them. UserError names every wrong key."""
    try:
        return Method.model_validate({**data, "name": name})
    except ValidationError as error:
        raise UserError("\n".join(_explain(e, f"methods.{name}") for e in error.errors())) from error


def _explain(error: Any, where: str) -> str:
    """One pydantic error in a line: the key, what is wrong, and what was probably meant."""
    kind, value, location = error["type"], error["input"], list(error["loc"])
    slot = location[0] if location and location[0] in CHOICES else None
    # The tags of the union stand between a part's key and its parameters: "known" and the name, or "own".
    depth = 2 if slot == "penalties" else 1
    tags, parameters = location[depth : depth + 2], location[depth + 2 :]
    if slot is not None and tags[:1] == ["own"]:
        parameters = location[depth + 1 :]
    key = f"{where}.{location[0]}" if location else where
    if slot is None:
        key = ".".join([where, *map(str, location)])
    elif slot == "penalties" and len(location) > 1:
        key += f"[{location[1]}]"
    if kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type", "model_type") and slot:
        what = "penalty" if slot == "penalties" else slot
        if kind == "union_tag_invalid":
            said = value["name"]
            hint = did_you_mean(str(said), names(slot))
            return f"{key}: no {what} is called {said!r}.{hint} Your own: 'package.module:function'."
        return f"{key}: expected a name, or a mapping with 'name' and parameters (got {value!r})."
    if slot is not None:
        key = ".".join([key, *map(str, parameters)])
    if kind == "tuple_type":
        return f"{key}: expected a list (got {value!r})."
    if kind == "extra_forbidden":
        return f"{key}: {_unknown(slot, tags, location)}"
    if kind == "literal_error":
        return f"{key}: {value!r} is not {error['ctx']['expected']}."
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}."
    return f"{key}: {error['msg']} (got {value!r})."


def _unknown(slot: str | None, tags: list[Any], location: list[Any]) -> str:
    """What to say of a key that does not exist."""
    if slot is not None:
        known = next(set(p.model_fields) for p in CHOICES[slot] if p.model_fields["name"].default == tags[1]) - {"name"}
        hint = did_you_mean(str(location[-1]), known) if known else " It has no parameters."
        return f"{tags[1]!r} has no parameter {location[-1]!r}.{hint}"
    section = Method.model_fields[location[0]].annotation if len(location) > 1 else Method
    known = set(getattr(section, "model_fields", {})) - {"name"}
    return f"unknown key.{did_you_mean(str(location[-1]), known)}"
