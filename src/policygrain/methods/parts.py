"""The parts of a method as typed data: a name and parameters. Imports no torch.

The functions behind them are in ``policygrain.objective``; ``compute.py`` binds the parameters to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ..objective import Need, needed_by
from ..sections import Section, read_number
from .custom import import_function

Share = Annotated[float, Field(ge=0, le=1)]


class Part(Section):
    """A part of a method: the name of a function and its parameters."""

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All parameters, including defaults."""
        return {key: value for key, value in self if key != "name"}

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        return self.model_dump(exclude={"name"}, exclude_defaults=True)

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


class Custom(Part):
    """A custom function, "package.module:function"; all other keys are its keyword parameters."""

    model_config = Section.model_config | {"extra": "allow"}

    name: str = Field(pattern=r"^[\w.]+:\w+$", description="custom function: package.module:function")

    @model_validator(mode="before")
    @classmethod
    def _read_parameters(cls, data: Any) -> Any:
        return {k: read_number(v) for k, v in data.items()} if isinstance(data, Mapping) else data

    @property
    def needs(self) -> frozenset[Need]:
        """What the function declares with ``@needs``. Imports it; UserError if that fails."""
        return needed_by(import_function(self.name))


# ---- advantage ------------------------------------------------------------------------------------------------------


class Grpo(Part):
    """(R − mean) / (standard deviation + 1e-6) over the group."""

    name: Literal["grpo"] = "grpo"


class DrGrpo(Part):
    """R − mean over the group."""

    name: Literal["dr_grpo"] = "dr_grpo"


class Rloo(Part):
    """R − mean of the other responses of the group."""

    name: Literal["rloo"] = "rloo"


# ---- ratio ----------------------------------------------------------------------------------------------------------


def _is(default: str) -> Callable[[Any], bool]:
    """Leaves a key with this value out of records, so that results from before the key was added stay valid."""
    return lambda value: value == default


class TokenRatio(Part):
    """Per-token importance ratio."""

    name: Literal["token"] = "token"


class SequenceRatio(Part):
    """Geometric mean of the token ratios of the response."""

    name: Literal["sequence"] = "sequence"
    stop_gradient: bool = Field(False, description="true: the same value, but the gradient of each token's own ratio")


class PrefixRatio(Part):
    """Product of the token ratios up to and including each token."""

    name: Literal["prefix"] = "prefix"
    gradient: Literal["all", "own"] = Field(
        "all",
        exclude_if=_is("all"),
        description="through all tokens of the prefix; own: the product is a constant weight of the token's gradient",
    )


class ProductRatio(Part):
    """Product of all token ratios of the response: its exact importance weight."""

    name: Literal["product"] = "product"
    cap: float | None = Field(
        None, ge=1, description="C: the weight is at most this, and keeps its gradient; null: off"
    )


class NoRatio(Part):
    """Value 1 with the gradient of log π: REINFORCE."""

    name: Literal["none"] = "none"


class Block(Part):
    """K consecutive tokens are one action."""

    name: Literal["block"] = "block"
    size: int = Field(5, ge=1, description="block size K, in tokens")
    layout: Literal["sliding", "tiled"] = Field(
        "sliding", description="sliding: a window starts at each token; tiled: disjoint blocks"
    )
    weights: Literal["uniform", "future", "joint"] = Field(
        "future",
        description="uniform: 1/K each; future: 1−φ for the token itself, φ/(K−1) for each other; joint: 1 each",
    )
    future_weight: float = Field(
        0.3, ge=0, lt=1, description="φ, total weight of the later tokens, with weights: future"
    )
    future: Literal["backbone", "mtp_heads"] = Field(
        "backbone", description="which probabilities of later tokens are used: the model's or those of prediction heads"
    )
    edges: Literal["as_published", "normalised"] = Field(
        "as_published",
        exclude_if=_is("as_published"),
        description="normalised: each token's gradient is divided by its weight over all blocks, which is not 1 at the "
        "response's ends",
    )

    @model_validator(mode="after")
    def _check_heads(self) -> Block:
        if self.future == "mtp_heads" and (self.layout != "sliding" or self.size < 2):
            raise ValueError("future: mtp_heads needs layout: sliding and a size of at least 2")
        if self.future == "mtp_heads" and self.edges == "normalised":
            raise ValueError("edges: normalised needs future: backbone")
        return self

    @property
    def label(self) -> str:
        """`block K=5` with the default weights, `block K=5, joint` with others."""
        changed = {key: str(value) for key, value in self.changed.items()} | {"size": f"block K={self.size}"}
        if "future_weight" in changed:
            changed["future_weight"] = f"φ={self.future_weight:g}"
        return ", ".join([changed.pop("size"), *changed.values()])

    @property
    def needs(self) -> frozenset[Need]:
        """Prediction heads, if the probabilities of later tokens come from them."""
        return frozenset({"mtp_heads"} if self.n_mtp_heads else ())

    @property
    def n_mtp_heads(self) -> int:
        """One for each token of the block except the first, with future: mtp_heads."""
        return self.size - 1 if self.future == "mtp_heads" else 0


# ---- clip -----------------------------------------------------------------------------------------------------------


class Band(Part):
    """Clip range: ratios from 1 − low to 1 + high are not clipped."""

    low: float = Field(0.2, ge=0, le=1, description="ε_low: width of the clip range below 1")
    high: float = Field(0.2, ge=0, description="ε_high: width of the clip range above 1")


class PpoClip(Band):
    """min(r Â, clip(r, 1 − low, 1 + high) Â)."""

    name: Literal["ppo"] = "ppo"
    dual: float | None = Field(
        None, gt=1, description="c of dual clipping, an upper bound of the ratio for negative advantages; null: off"
    )


class NoClip(Part):
    """r Â."""

    name: Literal["none"] = "none"


class ClipCov(Band):
    """PPO's clip; in addition, a few tokens of high covariance get no gradient."""

    name: Literal["clip_cov"] = "clip_cov"
    fraction: Share = Field(2e-4, description="share of the step's tokens that get no gradient, chosen at random …")
    cov_low: float = Field(1.0, description="… among tokens whose covariance is at least this …")
    cov_high: float = Field(5.0, description="… and at most this")

    @property
    def needs(self) -> frozenset[Need]:
        """The log-probabilities of the whole step, for covariances."""
        return frozenset({"step_log_probs"})


# ---- aggregation ----------------------------------------------------------------------------------------------------


class TokenMean(Part):
    """Mean over all tokens of the step."""

    name: Literal["token_mean"] = "token_mean"


class SeqMeanTokenMean(Part):
    """Mean over responses of the mean over their tokens."""

    name: Literal["seq_mean_token_mean"] = "seq_mean_token_mean"


class SeqMeanTokenSumNorm(Part):
    """Mean over responses of the sum over their tokens, divided by the longest possible response."""

    name: Literal["seq_mean_token_sum_norm"] = "seq_mean_token_sum_norm"


# ---- penalties ------------------------------------------------------------------------------------------------------


class Kl(Part):
    """KL divergence between the policy and a reference (k3 estimator), over all or some tokens."""

    name: Literal["kl"] = "kl"
    coefficient: float = Field(1.0, description="λ")
    reference: Literal["initial", "old"] = Field(
        "initial", description="initial: the start policy; old: the policy that sampled the batch"
    )
    mask: Literal["all", "positive_advantage_entropy_drop"] = Field(
        "all", description="which tokens: all, or those with positive advantage and falling entropy (TEPO)"
    )
    entropy_signal: Literal["measured", "covariance"] = Field(
        "measured",
        description="how falling entropy is detected: from measured entropies or from the token's covariance",
    )

    @property
    def needs(self) -> frozenset[Need]:
        """The reference model, if it is the start policy; the log-probabilities of the step, for covariances."""
        reference = frozenset[Need]({"reference"} if self.reference == "initial" else ())
        return reference | frozenset[Need]({"step_log_probs"} if self.entropy_signal == "covariance" else ())


class EntropyBonus(Part):
    """Entropy bonus: −α times the policy's entropy."""

    name: Literal["entropy_bonus"] = "entropy_bonus"
    coefficient: float = Field(0.001, description="α")

    @property
    def needs(self) -> frozenset[Need]:
        """The gradient of the entropy."""
        return frozenset({"entropy_gradient"})


class KlCov(Part):
    """KL penalty to the policy that sampled the batch, on the tokens with the highest covariance."""

    name: Literal["kl_cov"] = "kl_cov"
    coefficient: float = Field(1.0, description="λ")
    fraction: Share = Field(2e-3, description="share of the step's tokens")

    @property
    def needs(self) -> frozenset[Need]:
        """The log-probabilities of the whole step, for covariances."""
        return frozenset({"step_log_probs"})


# ---- one choice for each axis ---------------------------------------------------------------------------------------


def _kind(value: Any) -> str:
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return "own" if isinstance(name, str) and ":" in name else "known"


BY_NAME = Field(discriminator="name")
OR_OWN = Discriminator(_kind)
Own = Annotated[Custom, Tag("own")]
Advantage = Annotated[Annotated[Grpo | DrGrpo | Rloo, BY_NAME, Tag("known")] | Own, OR_OWN]
Ratio = Annotated[
    Annotated[TokenRatio | SequenceRatio | PrefixRatio | ProductRatio | Block | NoRatio, BY_NAME, Tag("known")] | Own,
    OR_OWN,
]
Clip = Annotated[Annotated[PpoClip | NoClip | ClipCov, BY_NAME, Tag("known")] | Own, OR_OWN]
Aggregation = Annotated[
    Annotated[TokenMean | SeqMeanTokenMean | SeqMeanTokenSumNorm, BY_NAME, Tag("known")] | Own, OR_OWN
]
Penalty = Annotated[Annotated[Kl | EntropyBonus | KlCov, BY_NAME, Tag("known")] | Own, OR_OWN]
# By the method's key.
CHOICES: dict[str, tuple[type[Part], ...]] = {
    "advantage": (Grpo, DrGrpo, Rloo),
    "ratio": (TokenRatio, SequenceRatio, PrefixRatio, ProductRatio, Block, NoRatio),
    "clip": (PpoClip, NoClip, ClipCov),
    "aggregation": (TokenMean, SeqMeanTokenMean, SeqMeanTokenSumNorm),
    "penalties": (Kl, EntropyBonus, KlCov),
}


def names(slot: str) -> list[str]:
    """The names that the key ``slot`` of a method accepts, besides custom functions."""
    return [str(part.model_fields["name"].default) for part in CHOICES[slot]]
