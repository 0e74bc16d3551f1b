"""What the parts of a method have in common: a name and parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..objective import Need, needed_by
from ..settings import Settings, read_number
from .custom import import_function


@dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """A part of a method: the name of a function and its parameters."""

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All parameters, including defaults."""
        return {own.name: getattr(self, own.name) for own in fields(self) if own.name != "name"}

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        defaults = {own.name: own.default for own in fields(self)}
        return {key: value for key, value in self.settings.items() if value != defaults[key]}

    @property
    def label(self) -> str:
        """The name in figures, tables and records of measurements."""
        return ", ".join([self.name, *(f"{key} {value}" for key, value in self.changed.items())])

    @property
    def needs(self) -> frozenset[Need]:
        """What the trainer must provide."""
        return frozenset()

    @property
    def n_mtp_heads(self) -> int:
        """Number of prediction heads: one per token after the next one."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Custom(Part):
    """A custom function, "package.module:function"; all other keys are its keyword parameters."""

    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any], called: str = "") -> Custom:
        """The function that ``data`` names, with its parameters, which are checked where it is imported."""
        return cls(name=data["name"], parameters={k: read_number(v) for k, v in data.items() if k != "name"})

    def conflict(self) -> str:
        """A name that no function can have."""
        right = re.fullmatch(r"[\w.]+:\w+", self.name)
        return "" if right else f"{self.name!r} is no 'package.module:function'."

    @property
    def settings(self) -> dict[str, Any]:
        """Its parameters."""
        return dict(self.parameters)

    @property
    def changed(self) -> dict[str, Any]:
        """Its parameters, whose defaults are the function's."""
        return self.settings

    def data(self) -> dict[str, Any]:
        """The name and the parameters."""
        return {"name": self.name, **self.parameters}

    @property
    def needs(self) -> frozenset[Need]:
        """What the function declares with ``@needs``. Imports it; UserError if that fails."""
        return needed_by(import_function(self.name))
