"""The parts of a method as typed data: a name and parameters. Imports no torch.

The functions behind them are in ``policygrain.objective``; ``compute.py`` binds the parameters to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..objective import Need
from ..settings import keys, setting
from .clips import ClipCov, DppoKl, DppoTv, Fipo, Gmpo, Likelihood, NoClip, PpoClip, Sapo, Vespo
from .part import Part

# ---- advantage ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grpo(Part):
    """(R − mean) / (standard deviation + 1e-6) over the group."""

    name: Literal["grpo"] = "grpo"


@dataclass(frozen=True, kw_only=True)
class DrGrpo(Part):
    """R − mean over the group."""

    name: Literal["dr_grpo"] = "dr_grpo"


@dataclass(frozen=True, kw_only=True)
class Rloo(Part):
    """R − mean of the other responses of the group."""

    name: Literal["rloo"] = "rloo"


# ---- ratio ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TokenRatio(Part):
    """Per-token importance ratio."""

    name: Literal["token"] = "token"


@dataclass(frozen=True, kw_only=True)
class SequenceRatio(Part):
    """Geometric mean of the token ratios of the response."""

    name: Literal["sequence"] = "sequence"
    stop_gradient: bool = setting(False, description="true: the same value, but the gradient of each token's own ratio")


@dataclass(frozen=True, kw_only=True)
class PrefixRatio(Part):
    """Product of the token ratios up to and including each token."""

    name: Literal["prefix"] = "prefix"
    gradient: Literal["all", "own"] = setting(
        "all",
        later=True,
        description="through all tokens of the prefix; own: the product is a constant weight of the token's gradient",
    )


@dataclass(frozen=True, kw_only=True)
class ProductRatio(Part):
    """Product of all token ratios of the response: its exact importance weight."""

    name: Literal["product"] = "product"
    cap: float | None = setting(
        None, ge=1, description="C: the weight is at most this, and keeps its gradient; null: off"
    )


@dataclass(frozen=True, kw_only=True)
class GroupExpectation(Part):
    """The response's mean probability over its expectation in the group (GEPO)."""

    name: Literal["group_expectation"] = "group_expectation"

    @property
    def needs(self) -> frozenset[Need]:
        """Which prompt each response belongs to."""
        return frozenset({"groups"})


@dataclass(frozen=True, kw_only=True)
class NoRatio(Part):
    """Value 1 with the gradient of log π: REINFORCE."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Block(Part):
    """K consecutive tokens are one action."""

    name: Literal["block"] = "block"
    size: int = setting(5, ge=1, le=1_000_000, description="block size K, in tokens")
    layout: Literal["sliding", "tiled", "segments"] = setting(
        "sliding",
        description="sliding: a window starts at each token; tiled: disjoint blocks; segments: sentences or steps, "
        "whose lengths are the block sizes (`size` has no effect)",
    )
    weights: Literal["uniform", "future", "joint"] = setting(
        "future",
        description="uniform: 1/K each; future: 1−φ for the token itself, φ/(K−1) for each other; joint: 1 each",
    )
    future_weight: float = setting(
        0.3, ge=0, lt=1, description="φ, total weight of the later tokens, with weights: future"
    )
    future: Literal["backbone", "mtp_heads"] = setting(
        "backbone", description="which probabilities of later tokens are used: the model's or those of prediction heads"
    )
    edges: Literal["as_published", "normalised"] = setting(
        "as_published",
        later=True,
        description="normalised: each token's gradient is divided by its weight over all blocks, which is not 1 at the "
        "response's ends",
    )

    def conflict(self) -> str:
        """Prediction heads predict from each token on, with the model's own probabilities in no window."""
        if self.future == "mtp_heads" and (self.layout != "sliding" or self.size < 2):
            return "future: mtp_heads needs layout: sliding and a size of at least 2."
        if self.future == "mtp_heads" and self.edges == "normalised":
            return "edges: normalised needs future: backbone."
        if self.layout == "segments" and self.edges == "normalised":
            return "edges: normalised needs layout: sliding or tiled."
        return ""

    @property
    def label(self) -> str:
        """`block K=5` with the default weights, `block K=5, joint` with others."""
        changed = {key: str(value) for key, value in self.changed.items()} | {"size": f"block K={self.size}"}
        if "future_weight" in changed:
            changed["future_weight"] = f"φ={self.future_weight:g}"
        return ", ".join([changed.pop("size"), *changed.values()])

    @property
    def needs(self) -> frozenset[Need]:
        """Prediction heads, if the probabilities of later tokens come from them; segments, if blocks are these."""
        heads = frozenset[Need]({"mtp_heads"} if self.n_mtp_heads else ())
        return heads | frozenset[Need]({"segments"} if self.layout == "segments" else ())

    @property
    def n_mtp_heads(self) -> int:
        """One for each token of the block except the first, with future: mtp_heads."""
        return self.size - 1 if self.future == "mtp_heads" else 0


# ---- aggregation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TokenMean(Part):
    """Mean over all tokens of the step."""

    name: Literal["token_mean"] = "token_mean"


@dataclass(frozen=True, kw_only=True)
class SeqMeanTokenMean(Part):
    """Mean over responses of the mean over their tokens."""

    name: Literal["seq_mean_token_mean"] = "seq_mean_token_mean"


@dataclass(frozen=True, kw_only=True)
class SeqMeanTokenSum(Part):
    """Mean over responses of the sum over their tokens."""

    name: Literal["seq_mean_token_sum"] = "seq_mean_token_sum"


@dataclass(frozen=True, kw_only=True)
class SeqMeanTokenSumNorm(Part):
    """Mean over responses of the sum over their tokens, divided by the longest possible response."""

    name: Literal["seq_mean_token_sum_norm"] = "seq_mean_token_sum_norm"


@dataclass(frozen=True, kw_only=True)
class PromptMean(Part):
    """Mean over prompts of the mean over all tokens of a prompt's responses."""

    name: Literal["prompt_mean"] = "prompt_mean"

    @property
    def needs(self) -> frozenset[Need]:
        """Which prompt each response belongs to."""
        return frozenset({"groups"})


# ---- penalties ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Kl(Part):
    """KL divergence between the policy and a reference (k3 estimator), over all or some tokens."""

    name: Literal["kl"] = "kl"
    coefficient: float = setting(1.0, ge=0, description="λ")
    reference: Literal["initial", "old"] = setting(
        "initial", description="initial: the start policy; old: the policy that sampled the batch"
    )
    mask: Literal["all", "positive_advantage_entropy_drop"] = setting(
        "all", description="which tokens: all, or those with positive advantage and falling entropy (TEPO)"
    )
    entropy_signal: Literal["auto", "measured", "covariance"] = setting(
        "auto",
        description="how falling entropy is detected: from measured entropies or from the token's covariance; auto: "
        "measured where the trainer gives entropies",
    )

    @property
    def needs(self) -> frozenset[Need]:
        """The reference model, if it is the start policy; the log-probabilities of the step, for covariances."""
        reference = frozenset[Need]({"reference"} if self.reference == "initial" else ())
        return reference | frozenset[Need]({"step_log_probs"} if self.entropy_signal == "covariance" else ())


@dataclass(frozen=True, kw_only=True)
class EntropyBonus(Part):
    """Entropy bonus: −α times the policy's entropy."""

    name: Literal["entropy_bonus"] = "entropy_bonus"
    coefficient: float = setting(0.001, description="α")

    @property
    def needs(self) -> frozenset[Need]:
        """The gradient of the entropy."""
        return frozenset({"entropy_gradient"})


@dataclass(frozen=True, kw_only=True)
class KlCov(Part):
    """KL penalty to the policy that sampled the batch, on the tokens with the highest covariance."""

    name: Literal["kl_cov"] = "kl_cov"
    coefficient: float = setting(1.0, ge=0, description="λ")
    fraction: float = setting(2e-3, ge=0, le=1, description="share of the step's tokens")

    @property
    def needs(self) -> frozenset[Need]:
        """The log-probabilities of the whole step, for covariances."""
        return frozenset({"step_log_probs"})


@dataclass(frozen=True, kw_only=True)
class SquaredLogRatio(Part):
    """Half the squared log-ratio of each token (DRO)."""

    name: Literal["squared_log_ratio"] = "squared_log_ratio"
    coefficient: float = setting(0.05, ge=0, description="β")


# ---- one choice for each axis ---------------------------------------------------------------------------------------


# By the method's key.
CHOICES: dict[str, tuple[type[Part], ...]] = {
    "advantage": (Grpo, DrGrpo, Rloo),
    "ratio": (TokenRatio, SequenceRatio, PrefixRatio, ProductRatio, Block, GroupExpectation, NoRatio),
    "clip": (PpoClip, NoClip, ClipCov, Likelihood, Gmpo, Sapo, DppoTv, DppoKl, Vespo, Fipo),
    "aggregation": (TokenMean, SeqMeanTokenMean, SeqMeanTokenSum, SeqMeanTokenSumNorm, PromptMean),
    "penalties": (Kl, EntropyBonus, KlCov, SquaredLogRatio),
}


def names(slot: str) -> list[str]:
    """The names that the key ``slot`` of a method accepts, besides custom functions."""
    return list(by_name(slot))


def by_name(slot: str) -> dict[str, type[Part]]:
    """Name → part, of the parts that the key ``slot`` of a method accepts."""
    return {str(keys(part)["name"][1].default): part for part in CHOICES[slot]}
