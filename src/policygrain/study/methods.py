"""Changes to methods in a study file, with the keys, types and descriptions of ``policygrain.objective``.

Whether parts and their parameters exist is checked after merging with the base.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, create_model, field_validator, model_serializer

from ..objective import Method, MtpHeads, Sampler
from ..objective.method import CHOICES, TEXTS, Anchor
from ..settings import Settings, keys
from .sections import Section

OWN: dict[str, Any] = {"type": "string", "pattern": ":", "description": "your own: package.module:function"}


def section_of_settings(kind: type[Settings]) -> type[Section]:
    """A section of a study file with the keys of ``kind``, described by the first paragraph of its docstring."""
    fields: dict[str, Any] = {}
    for name, (annotation, field) in keys(kind).items():
        about = {"description": field.metadata.get("description"), **field.metadata.get("bounds", {})}
        fields[name] = (annotation, Field(field.default, **about))
    description = " ".join(str(inspect.getdoc(kind)).partition("\n\n")[0].split())
    return create_model(kind.__name__, __base__=Section, __doc__=description, **fields)


def _change(name: str) -> Any:
    """A key of a method, which a study may leave out, with the names of the parts that it accepts."""
    about = keys(Method)[name][1].metadata
    description = ": ".join(filter(None, [about["description"], ", ".join(CHOICES.get(name, ()))]))
    return Field("" if name in TEXTS else None, description=description, **about["bounds"])


def _part(slot: str) -> dict[str, Any]:
    """The JSON schema of changes to a part: its name alone, or a mapping, by default with the base's name."""
    schemas = [section_of_settings(part).model_json_schema() for part in CHOICES[slot].values()]
    custom = {"type": "object", "properties": {"name": OWN}, "required": ["name"]}
    return {"anyOf": [{"enum": list(CHOICES[slot])}, OWN, *schemas, custom]}


def _or_null(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*schemas, {"type": "null"}]})


# Whether a part can be read is checked after merging, with errors that name its keys.
SomePart = str | dict[str, Any] | None
SamplerChanges: Any = section_of_settings(Sampler)
MtpHeadsChanges: Any = section_of_settings(MtpHeads)


class MethodChanges(Section):
    """A method of the study, or changes to a preset of the same name. Keys that are not given are as in the base.

    Whether parts and parameters exist is checked after merging with the base, because a mapping may leave out the name
    that its base has.
    """

    base: str | None = Field(
        None, description="preset or method of this study that this one changes; null: the defaults"
    )
    label: str = _change("label")
    summary: str = _change("summary")
    source: str = _change("source")
    advantage: Annotated[SomePart, WithJsonSchema(_part("advantage"))] = _change("advantage")
    ratio: Annotated[SomePart, WithJsonSchema(_part("ratio"))] = _change("ratio")
    clip: Annotated[SomePart, _or_null(*_part("clip")["anyOf"])] = _change("clip")
    aggregation: Annotated[SomePart, WithJsonSchema(_part("aggregation"))] = _change("aggregation")
    penalties: Annotated[
        list[str | dict[str, Any]] | None, _or_null({"type": "array", "items": _part("penalties")})
    ] = _change("penalties")
    sampler: SamplerChanges | None = _change("sampler")
    mtp_heads: MtpHeadsChanges | None = _change("mtp_heads")
    off_policy_bound: float | None = _change("off_policy_bound")
    anchor: Anchor | None = _change("anchor")

    @field_validator("advantage", "ratio", "clip", "aggregation", mode="before")
    @classmethod
    def _check_kind(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str | Mapping):
            raise ValueError("expected a name, or a mapping with 'name' and parameters")
        return value

    @model_serializer
    def data(self) -> dict[str, Any]:
        """The keys that the study file sets, including those set to null."""
        values = {key: value for key, value in self if key in self.model_fields_set}
        return {k: v.model_dump(exclude_unset=True) if isinstance(v, Section) else v for k, v in values.items()}
