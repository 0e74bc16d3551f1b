"""The parts of a method as typed data: a name and parameters. Imports no torch.

The functions behind them are in ``policygrain.objective``; ``compute.py`` binds the parameters to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ..objective import Need, needed_by
from ..settings import Settings, keys, read_number, setting
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
class NoRatio(Part):
    """Value 1 with the gradient of log π: REINFORCE."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Block(Part):
    """K consecutive tokens are one action."""

    name: Literal["block"] = "block"
    size: int = setting(5, ge=1, description="block size K, in tokens")
    layout: Literal["sliding", "tiled"] = setting(
        "sliding", description="sliding: a window starts at each token; tiled: disjoint blocks"
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
        """Prediction heads, if the probabilities of later tokens come from them."""
        return frozenset({"mtp_heads"} if self.n_mtp_heads else ())

    @property
    def n_mtp_heads(self) -> int:
        """One for each token of the block except the first, with future: mtp_heads."""
        return self.size - 1 if self.future == "mtp_heads" else 0


# ---- clip -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Band(Part):
    """Clip range: ratios from 1 − low to 1 + high are not clipped."""

    low: float = setting(0.2, ge=0, le=1, description="ε_low: width of the clip range below 1")
    high: float = setting(0.2, ge=0, description="ε_high: width of the clip range above 1")


@dataclass(frozen=True, kw_only=True)
class PpoClip(Band):
    """min(r Â, clip(r, 1 − low, 1 + high) Â)."""

    name: Literal["ppo"] = "ppo"
    dual: float | None = setting(
        None, gt=1, description="c of dual clipping, an upper bound of the ratio for negative advantages; null: off"
    )


@dataclass(frozen=True, kw_only=True)
class NoClip(Part):
    """r Â."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Likelihood(Part):
    """The bounded ratio as a constant weight of Â log π: no token loses its gradient (CISPO)."""

    name: Literal["likelihood"] = "likelihood"
    low: float | None = setting(None, ge=0, description="smallest weight; null: none")
    cap: float | None = setting(5.0, gt=0, description="largest weight, absolute and not 1 + ε; null: none")


@dataclass(frozen=True, kw_only=True)
class Gmpo(Part):
    """Log-ratios of tokens are bounded before their mean over the response."""

    name: Literal["gmpo"] = "gmpo"
    low: float = setting(0.4, ge=0, description="bound of ℓ below 0, where the advantage is negative")
    high: float = setting(0.4, ge=0, description="bound of ℓ above 0, where the advantage is positive")


@dataclass(frozen=True, kw_only=True)
class Sapo(Part):
    """A sigmoid of the ratio instead of a clip."""

    name: Literal["sapo"] = "sapo"
    positive: float = setting(1.0, gt=0, description="τ where the advantage is positive")
    negative: float = setting(1.05, gt=0, description="τ elsewhere")


@dataclass(frozen=True, kw_only=True)
class DppoTv(Part):
    """No gradient for tokens whose probability has moved too far: a bound on total variation."""

    name: Literal["dppo_tv"] = "dppo_tv"
    low: float = setting(0.15, ge=0, description="δ_low: largest fall of the probability")
    high: float = setting(0.15, ge=0, description="δ_high: largest rise of the probability")


@dataclass(frozen=True, kw_only=True)
class DppoKl(Part):
    """No gradient for tokens whose probability has moved too far: a bound on the KL divergence."""

    name: Literal["dppo_kl"] = "dppo_kl"
    low: float = setting(0.05, ge=0, description="δ_low: largest divergence of a token that has become less likely")
    high: float = setting(0.05, ge=0, description="δ_high: largest divergence of a token that has become more likely")


@dataclass(frozen=True, kw_only=True)
class Vespo(Part):
    """The response's importance weight W, damped, as a constant weight of Â log π: φ(W) = W^k exp(λ (1 − W))."""

    name: Literal["vespo"] = "vespo"
    positive_power: float = setting(2.0, ge=0, description="k where the advantage is at least 0")
    positive_decay: float = setting(3.0, ge=0, description="λ where the advantage is at least 0")
    negative_power: float = setting(3.0, ge=0, description="k elsewhere")
    negative_decay: float = setting(2.0, ge=0, description="λ elsewhere")


@dataclass(frozen=True, kw_only=True)
class ClipCov(Band):
    """PPO's clip; in addition, a few tokens of high covariance get no gradient."""

    name: Literal["clip_cov"] = "clip_cov"
    fraction: float = setting(
        2e-4, ge=0, le=1, description="share of the step's tokens that get no gradient, chosen at random …"
    )
    cov_low: float = setting(1.0, description="… among tokens whose covariance is at least this …")
    cov_high: float = setting(5.0, description="… and at most this")

    @property
    def needs(self) -> frozenset[Need]:
        """The log-probabilities of the whole step, for covariances."""
        return frozenset({"step_log_probs"})


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


# ---- penalties ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Kl(Part):
    """KL divergence between the policy and a reference (k3 estimator), over all or some tokens."""

    name: Literal["kl"] = "kl"
    coefficient: float = setting(1.0, description="λ")
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
    coefficient: float = setting(1.0, description="λ")
    fraction: float = setting(2e-3, ge=0, le=1, description="share of the step's tokens")

    @property
    def needs(self) -> frozenset[Need]:
        """The log-probabilities of the whole step, for covariances."""
        return frozenset({"step_log_probs"})


# ---- one choice for each axis ---------------------------------------------------------------------------------------


# By the method's key.
CHOICES: dict[str, tuple[type[Part], ...]] = {
    "advantage": (Grpo, DrGrpo, Rloo),
    "ratio": (TokenRatio, SequenceRatio, PrefixRatio, ProductRatio, Block, NoRatio),
    "clip": (PpoClip, NoClip, ClipCov, Likelihood, Gmpo, Sapo, DppoTv, DppoKl, Vespo),
    "aggregation": (TokenMean, SeqMeanTokenMean, SeqMeanTokenSum, SeqMeanTokenSumNorm),
    "penalties": (Kl, EntropyBonus, KlCov),
}


def names(slot: str) -> list[str]:
    """The names that the key ``slot`` of a method accepts, besides custom functions."""
    return list(by_name(slot))


def by_name(slot: str) -> dict[str, type[Part]]:
    """Name → part, of the parts that the key ``slot`` of a method accepts."""
    return {str(keys(part)["name"][1].default): part for part in CHOICES[slot]}
