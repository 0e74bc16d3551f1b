"""Typed settings without dependencies: dataclasses that check their values and describe their keys.

The objective is used inside other trainers, whose pinned dependencies allow no validation library. No value is
converted silently: an integer is not a truth value, text is not a number. An integer where a number is expected becomes
a float, so that 1 and 1.0 are the same in records.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
import sys
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import did_you_mean

S = TypeVar("S", bound="Settings")
BOUNDS = {
    "ge": ("greater than or equal to", lambda value, bound: value >= bound),
    "gt": ("greater than", lambda value, bound: value > bound),
    "le": ("less than or equal to", lambda value, bound: value <= bound),
    "lt": ("less than", lambda value, bound: value < bound),
}
# Numbers that YAML 1.1 reads as text: it requires a point before the exponent and a sign after it.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class InvalidSettings(ValueError):
    """``problems``: key → problem of its value; the empty key is for values that are incompatible with each other."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(": ".join(filter(None, item)) for item in self.problems.items()))


def setting(default: Any, description: str = "", **bounds: float) -> Any:
    """A field with its description and bounds (`ge`, `gt`, `le`, `lt`)."""
    return dataclasses.field(default=default, metadata={"description": description, "bounds": bounds})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Values by key, checked when they are set. InvalidSettings names the keys that are wrong."""

    _keys: ClassVar[dict[str, tuple[Any, dataclasses.Field[Any]]]]  # filled by `keys` at the first use of each class

    def __post_init__(self) -> None:
        problems = {}
        for name, (kind, field) in keys(type(self)).items():
            value = getattr(self, name)
            if problem := problem_of(value, kind, field.metadata.get("bounds", {})):
                problems[name] = problem
            elif float in _kinds(kind) and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
        if not problems and (problem := self.conflict()):
            problems[""] = problem
        if problems:
            raise InvalidSettings(problems)

    def conflict(self) -> str:
        """The problem of values that are valid one by one but incompatible; empty: none."""
        return ""

    @classmethod
    def of(cls: type[S], data: Mapping[str, Any], called: str = "") -> S:
        """The settings in ``data``, in which numbers may be text such as `1e-3`. InvalidSettings names the wrong keys.

        ``called``: name of the settings in messages on unknown keys.
        """
        known = keys(cls)
        problems = {name: _unknown(name, called, known) for name in data if name not in known}
        values = {
            name: read_number(value) if float in _kinds(known[name][0]) else value
            for name, value in data.items()
            if name in known
        }
        try:
            settings = cls(**values)
        except InvalidSettings as error:
            raise InvalidSettings(error.problems | problems) from None
        if problems:
            raise InvalidSettings(problems)
        return settings

    def data(self) -> dict[str, Any]:
        """Key → value as in JSON, for records."""
        return {name: _plain(getattr(self, name)) for name in keys(type(self))}


def keys(cls: type[Settings]) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Key → its type and its field, of a class of settings."""
    if "_keys" not in vars(cls):
        hints = get_type_hints(cls)
        cls._keys = {field.name: (hints[field.name], field) for field in dataclasses.fields(cls)}
    return cls._keys


def problem_of(value: Any, kind: Any, bounds: Mapping[str, float] = types.MappingProxyType({})) -> str:
    """The problem of a value that should have the type ``kind``, as a sentence; empty: none."""
    if value is None and type(None) in _kinds(kind):
        return ""
    if choices := [choice for k in _kinds(kind) if get_origin(k) is Literal for choice in get_args(k)]:
        *others, last = map(repr, choices)
        return "" if value in choices else f"{value!r} is not {' or '.join(filter(None, [', '.join(others), last]))}."
    problem = _not_a(value, [k for k in _kinds(kind) if k is not type(None)])
    if not problem and isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        problem = "must be a finite number"
    for name, bound in bounds.items() if not problem else ():
        words, holds = BOUNDS[name]
        if not holds(value, bound):
            problem = f"must be {words} {bound:g}"
    return problem and f"{problem} (got {reprlib.repr(value)})."


def _not_a(value: Any, kinds: list[Any]) -> str:
    """The requirement of these types that the value does not meet; empty if it has one of them."""
    is_bool = isinstance(value, bool)
    if bool in kinds:
        return "" if is_bool else "must be a valid boolean, true or false"
    if float in kinds:
        return "" if isinstance(value, int | float) and not is_bool else "must be a valid number"
    if int in kinds:
        return "" if isinstance(value, int) and not is_bool else "must be a valid integer"
    if str in kinds:
        return "" if isinstance(value, str) else "must be text"
    classes = tuple(get_origin(k) or k for k in kinds if k is not Any)
    return "" if not classes or isinstance(value, classes) else f"must be {' or '.join(c.__name__ for c in classes)}"


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _unknown(name: str, called: str, known: Mapping[str, Any]) -> str:
    """The message on an unknown key."""
    if not called:
        return f"unknown key.{did_you_mean(name, known)}"
    others = set(known) - {"name"}
    hint = did_you_mean(name, others) if others else " It has no parameters."
    return f"{called!r} has no parameter {name!r}.{hint}"


def _plain(value: Any) -> Any:
    """A value as in JSON."""
    if isinstance(value, Settings):
        return value.data()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def read_number(value: Any) -> Any:
    """``value`` with text like ``1e-3`` converted to numbers, also in lists; other values are unchanged."""
    if isinstance(value, list | tuple):
        return type(value)(read_number(item) for item in value)
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
