"""A method as typed data: parts, sampler and prediction heads; and the changes that a study makes. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_serializer

from ..objective import Need
from ..sections import Section
from .parts import (
    CHOICES,
    Advantage,
    Aggregation,
    Clip,
    Grpo,
    Kl,
    NoClip,
    Part,
    Penalty,
    Ratio,
    TokenMean,
    TokenRatio,
    names,
)

if TYPE_CHECKING:
    from ..objective.batch import StepTotals, TokenBatch


class Sampler(Section):
    """What happens between sampling and the loss (DAPO, arXiv 2503.14476, sections 3.2 and 3.4)."""

    dynamic: bool = Field(
        False,
        description="dynamic sampling: drop groups with equal rewards and sample new prompts until the batch is full",
    )
    oversample: float = Field(
        2.0,
        ge=1,
        description="prompts sampled per missing prompt; one large round of sampling is cheaper than "
        "several small ones",
    )
    max_batches: int = Field(4, ge=1, description="dynamic sampling stops after this many batches of prompts")
    overlong_buffer: float = Field(
        0.0,
        ge=0,
        description="size of the overlong buffer as a share of max_tokens; responses that end in it "
        "lose up to 1 of reward; 0: off",
    )
    mask_truncated: bool = Field(False, description="exclude responses without an end-of-sequence token from the loss")
    correction_cap: float | None = Field(
        None, gt=0, description="cap C of truncated importance sampling between engine and trainer; null: off"
    )


class MtpHeads(Section):
    """Multi-token prediction heads, where the ratio has `future: mtp_heads` (our reading of MPO's published form)."""

    warmup_batches: int = Field(8, ge=0, description="batches that the heads are trained on before the first step")
    learning_rate: float = Field(
        3e-3, ge=0, description="learning rate of AdamW for the heads, during and after warm-up"
    )
    loss_weight: float = Field(
        1.0, ge=0, description="weight of the heads' cross-entropy in the loss; 0: the objective alone"
    )


class MethodSpec(Section):
    """A ratio, a clip, an aggregation, penalties, an advantage and a sampler."""

    name: str
    summary: str = ""
    source: str = ""
    advantage: Advantage = Grpo()
    ratio: Ratio = TokenRatio()
    clip: Clip = NoClip()
    aggregation: Aggregation = TokenMean()
    penalties: tuple[Penalty, ...] = ()
    sampler: Sampler = Sampler()
    mtp_heads: MtpHeads = MtpHeads()

    @field_validator("advantage", "ratio", "clip", "aggregation", mode="before")
    @classmethod
    def _read_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("clip", mode="before")
    @classmethod
    def _read_clip(cls, value: Any) -> Any:
        return {"name": "none"} if value is None else named_clip(value)

    @field_validator("penalties", mode="before")
    @classmethod
    def _read_penalties(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, list | tuple):
            return value
        return tuple({"name": item} if isinstance(item, str) else item for item in value or ())

    @field_validator("sampler", "mtp_heads", mode="before")
    @classmethod
    def _read_defaults(cls, value: Any) -> Any:
        return {} if value is None else value

    def parts(self) -> dict[str, Part]:
        """Its parts by the key that they stand under."""
        penalties = {f"penalties[{i}]": part for i, part in enumerate(self.penalties)}
        slots = {"advantage": self.advantage, "ratio": self.ratio, "clip": self.clip, "aggregation": self.aggregation}
        return {**slots, **penalties}

    def data(self) -> dict[str, Any]:
        """As in YAML, every default included: what a run's record keeps."""
        unused = set() if self.n_mtp_heads else {"mtp_heads"}
        return self.model_dump(mode="json", exclude={"name", *unused})

    @property
    def needs(self) -> frozenset[Need]:
        """What the trainer must provide. Imports custom functions."""
        return frozenset[Need]().union(*(part.needs for part in self.parts().values()))

    @property
    def entropy_signal(self) -> Literal["measured", "covariance"]:
        """How TEPO's mask, a part of the loss or only of the metrics, tells that entropy falls."""
        return next((part.entropy_signal for part in self.penalties if isinstance(part, Kl)), "measured")

    @property
    def n_mtp_heads(self) -> int:
        """How many tokens after the next one are predicted by heads."""
        return self.ratio.n_mtp_heads

    def step_of(self, batch: TokenBatch) -> TokenBatch | StepTotals:
        """What ``batch``, a whole optimizer step, is to its micro-batches: its totals, or itself where they read it."""
        return batch if "step_log_probs" in self.needs else batch.totals


def named_clip(value: Any) -> Any:
    """A clip's mapping without a name is PPO's."""
    return {"name": "ppo", **value} if isinstance(value, Mapping) else value


# ---- changes --------------------------------------------------------------------------------------------------------

OWN: dict[str, Any] = {"type": "string", "pattern": ":", "description": "your own: package.module:function"}


def _choice(slot: str) -> dict[str, Any]:
    """The JSON schema of some of a part's keys: its name alone, or a mapping, where the name is that of the base."""
    schemas = [part.model_json_schema() for part in CHOICES[slot]]
    own = {"type": "object", "properties": {"name": OWN}, "required": ["name"]}
    return {"anyOf": [{"enum": names(slot)}, OWN, *schemas, own]}


def _described(slot: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*_choice(slot)["anyOf"], *([{"type": "null"}] if slot == "clip" else [])]})


# Whether a part can be read is checked after merging, with errors that name its keys.
SomePart = str | dict[str, Any] | None


class MethodChanges(Section):
    """A method of the study, or changes to a preset of the same name. Keys that are not given are as in the base.

    Whether parts and parameters exist is checked after merging (``presets.method``): until then a mapping may leave out
    the name that its base has.
    """

    base: str | None = Field(
        None, description="preset or method of this study that this one changes; null: the defaults"
    )
    summary: str = Field("", description="one line for lists")
    source: str = Field("", description="paper or other origin")
    advantage: Annotated[SomePart, _described("advantage")] = Field(
        None, description="advantage over the group: grpo, dr_grpo or rloo"
    )
    ratio: Annotated[SomePart, _described("ratio")] = Field(
        None,
        description="importance ratio (its grain): token, sequence, prefix, product, block or none, "
        "with its parameters",
    )
    clip: Annotated[SomePart, _described("clip")] = Field(
        None, description="{low, high, dual}: PPO's clip; or clip_cov with its parameters; null: no clip"
    )
    aggregation: Annotated[SomePart, _described("aggregation")] = Field(
        None, description="how token losses are averaged: token_mean, seq_mean_token_mean or seq_mean_token_sum_norm"
    )
    penalties: Annotated[
        list[str | dict[str, Any]] | None,
        WithJsonSchema({"anyOf": [{"type": "array", "items": _choice("penalties")}, {"type": "null"}]}),
    ] = Field(
        None,
        description="list of kl, entropy_bonus and kl_cov, each with its parameters; replaces the list of the base",
    )
    sampler: Sampler | None = Field(None, description="dynamic sampling, overlong and truncated responses")
    mtp_heads: MtpHeads | None = Field(None, description="prediction heads, for a block ratio with future: mtp_heads")

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
