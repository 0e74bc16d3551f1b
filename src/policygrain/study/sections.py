"""Building blocks of the study schema: sections, keys, and value types with bounds.

Bounds exclude only values that are certainly mistakes. Each key names the artefacts that depend on it directly;
what depends on those, Snakemake finds by their files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from ..errors import did_you_mean

MOST = 1_000_000
T = TypeVar("T")

Artefact = Literal["training_data", "benchmarks", "start_model", "run", "evaluation", "figures", "tracking"]
Artefacts = tuple[Artefact, ...]
NOTHING: Artefacts = ()  # for memory, limits, checkpoints, division into jobs
POLICY_AND_EVALUATION: Artefacts = ("run", "evaluation")
EVERY_MODEL: Artefacts = ("start_model", *POLICY_AND_EVALUATION)


class Section(BaseModel):
    """A mapping of the study file: no unknown keys, no silent conversion of values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_known(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(f"{key}: unknown key.{did_you_mean(str(key), cls.model_fields)}")
        return data


def key(decides: Artefact | Artefacts, default: Any, description: str, **bounds: Any) -> Any:
    """A key of a section with the artefacts that depend on it; ``default`` is ... for a required key."""
    artefacts = [decides] if isinstance(decides, str) else list(decides)
    return Field(default, description=description, json_schema_extra={"decides": artefacts}, **bounds)  # type: ignore[dict-item]


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a schema that is not a section, with its field: `training.steps`, `evaluation.benchmarks[].name`."""
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        if section is None or decides(info) is not None:
            yield f"{prefix}{name}", info
        else:
            yield from leaves(section, f"{prefix}{name}{marker_of(info)}.")


def marker_of(info: FieldInfo) -> str:
    """Suffix of a key with sections: `[]` for a list of them, `.NAME` for a mapping, else nothing."""
    kind = get_origin(info.annotation)
    return "[]" if kind is list else ".NAME" if kind is dict else ""


def decides(info: FieldInfo) -> list[Artefact] | None:
    """The artefacts that depend on a key directly; None for keys without a declaration, such as those of sections."""
    extra = info.json_schema_extra
    return extra.get("decides") if isinstance(extra, dict) else None  # type: ignore[return-value]


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section type of a key, of its list items or of its mapping values; None for other keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    sections = (section_of(argument) for argument in get_args(annotation))
    return next((section for section in sections if section is not None), None)


def distinct(values: Sequence[Any]) -> Sequence[Any]:
    """``values``; ValueError if one occurs twice."""
    duplicate = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if duplicate is not None:
        raise ValueError(f"{duplicate!r} occurs twice")
    return values


def tracking_uri(value: str) -> str:
    """``value``; ValueError if it is not an address that MLflow supports, or has a password."""
    if re.search(r"://[^/\s]*@|[?&](?:password|token)=", value):
        raise ValueError(  # without the address, which has the password in it
            "contains a user name, password or token, and a study file is copied with its results. Set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    if value == "databricks" or re.match(r"(https?|file|sqlite|postgresql|mysql|mssql|databricks)(\+\w+)?:\S+$", value):
        return value
    raise ValueError(f"{value!r} is not a tracking URI, such as http://HOST:5000, sqlite:///FILE or file:FOLDER")


# A key with its own bound has a plain type, because pydantic would drop one of two bounds of a kind.
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
Level = Annotated[int, Field(ge=1, le=15)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
# Names are used for folders, files, MLflow runs and command-line arguments.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
Several = Annotated[list[T], Field(min_length=1, max_length=1000), AfterValidator(distinct)]
