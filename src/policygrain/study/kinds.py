"""The types of the values of study files, with the bounds that all keys of a type have.

Values out of bounds are certainly mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

MOST = 1_000_000
T = TypeVar("T")


def distinct(values: Sequence[Any]) -> Sequence[Any]:
    """``values``; ValueError if one of them is there twice."""
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is there twice")
    return values


def tracking_uri(value: str) -> str:
    """``value``; ValueError if it is no address that MLflow knows."""
    if value == "databricks" or re.match(r"(https?|file|sqlite|postgresql|mysql|mssql|databricks)(\+\w+)?:\S+$", value):
        return value
    raise ValueError(f"{value!r} is no tracking URI, such as http://HOST:5000, sqlite:///FILE or file:FOLDER")


# A key with its own bound has a plain type, because pydantic would drop one of two bounds of a kind.
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
# Names are used for folders, files, MLflow runs and command-line arguments.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
Several = Annotated[list[T], Field(min_length=1, max_length=1000), AfterValidator(distinct)]
