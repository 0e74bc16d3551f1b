"""The methods of a study file: their keys, for the schema and its documentation, and what a study changes.

The types of the keys are those of ``policygrain.methods``; whether parts exist is checked after merging with the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, create_model, field_validator, model_serializer

from ..methods import Method, MtpHeads, Sampler
from ..methods.parts import CHOICES, names
from ..sections import Section
from ..settings import Settings, keys

OWN: dict[str, Any] = {"type": "string", "pattern": ":", "description": "your own: package.module:function"}


def section_of_settings(kind: type[Settings]) -> type[Section]:
    """A section of a study file with the keys of ``kind``."""
    found: dict[str, Any] = {}
    for name, (annotation, field) in keys(kind).items():
        about = {"description": field.metadata.get("description"), **field.metadata.get("bounds", {})}
        found[name] = (annotation, Field(field.default, **about))
    return create_model(kind.__name__, __base__=Section, __doc__=kind.__doc__, **found)


def _choice(slot: str) -> dict[str, Any]:
    """The JSON schema of some of a part's keys: its name alone, or a mapping, where the name is that of the base."""
    schemas = [section_of_settings(part).model_json_schema() for part in CHOICES[slot]]
    own = {"type": "object", "properties": {"name": OWN}, "required": ["name"]}
    return {"anyOf": [{"enum": names(slot)}, OWN, *schemas, own]}


def _described(slot: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*_choice(slot)["anyOf"], *([{"type": "null"}] if slot == "clip" else [])]})


# Whether a part can be read is checked after merging, with errors that name its keys.
SomePart = str | dict[str, Any] | None
SamplerChanges: Any = section_of_settings(Sampler)
MtpHeadsChanges: Any = section_of_settings(MtpHeads)


class MethodChanges(Section):
    """A method of the study, or changes to a preset of the same name. Keys that are not given are as in the base.

    Whether parts and parameters exist is checked after merging (``presets.method``): until then a mapping may leave out
    the name that its base has.
    """

    base: str | None = Field(
        None, description="preset or method of this study that this one changes; null: the defaults"
    )
    label: str = Field("", description="its name in figures and tables, such as `TEPO, full KL`; default: from its key")
    summary: str = Field("", description="one line for lists")
    source: str = Field("", description="paper or other origin")
    advantage: Annotated[SomePart, _described("advantage")] = Field(
        None, description="advantage over the group: grpo, dr_grpo or rloo"
    )
    ratio: Annotated[SomePart, _described("ratio")] = Field(
        None,
        description="importance ratio (its grain): token, sequence, prefix, product, block, group_expectation "
        "or none, "
        "with its parameters",
    )
    clip: Annotated[SomePart, _described("clip")] = Field(
        None,
        description="{low, high, dual}: PPO's clip; or clip_cov, likelihood, gmpo, sapo, dppo_tv, dppo_kl, vespo or "
        "fipo with its parameters; null: no clip",
    )
    aggregation: Annotated[SomePart, _described("aggregation")] = Field(
        None,
        description="how token losses are averaged: token_mean, seq_mean_token_mean, seq_mean_token_sum, "
        "seq_mean_token_sum_norm or prompt_mean",
    )
    penalties: Annotated[
        list[str | dict[str, Any]] | None,
        WithJsonSchema({"anyOf": [{"type": "array", "items": _choice("penalties")}, {"type": "null"}]}),
    ] = Field(
        None,
        description="list of kl, entropy_bonus, kl_cov and squared_log_ratio, each with its parameters; replaces the "
        "list of the base",
    )
    sampler: SamplerChanges | None = Field(None, description="dynamic sampling, overlong and truncated responses")
    mtp_heads: MtpHeadsChanges | None = Field(
        None, description="prediction heads, for a block ratio with future: mtp_heads"
    )
    off_policy_bound: float | None = Field(
        None, ge=0, description=keys(Method)["off_policy_bound"][1].metadata["description"]
    )

    @field_validator("advantage", "ratio", "clip", "aggregation", mode="before")
    @classmethod
    def _check_kind(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str | Mapping):
            raise ValueError("expected a name, or a mapping with 'name' and parameters")
        return value

    @model_serializer
    def data(self) -> dict[str, Any]:
        """The keys that the study file has: one that is missing is as in the base, and one that is null is not."""
        given = {key: value for key, value in self if key in self.model_fields_set}
        return {k: v.model_dump(exclude_unset=True) if isinstance(v, Section) else v for k, v in given.items()}
