"""The base class of all sections of a study file."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from .settings import read_number


class Section(BaseModel):
    """A mapping of the study file: no unknown keys, no silent conversion of values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read_numbers(cls, data: Any) -> Any:
        """Convert text such as ``1e-3``, which YAML does not read as a number."""
        if not isinstance(data, Mapping):
            return data
        return {key: read_number(value) if key in cls._numbers() else value for key, value in data.items()}

    @classmethod
    @functools.cache
    def _numbers(cls) -> frozenset[str]:
        """The fields whose type allows float and not str."""
        leaves = {name: _leaves(field.annotation) for name, field in cls.model_fields.items()}
        return frozenset(name for name, kinds in leaves.items() if float in kinds and str not in kinds)


def _leaves(annotation: Any) -> list[Any]:
    """The types that an annotation is made of."""
    arguments = get_args(annotation)
    return [leaf for argument in arguments for leaf in _leaves(argument)] if arguments else [annotation]
