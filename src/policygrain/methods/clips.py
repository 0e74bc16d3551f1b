"""The clips as typed data (their functions: ``policygrain.objective.clip``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..objective import Need
from ..settings import setting
from .part import Part


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
    """The ratio as a constant weight of Â log π: bounded (CISPO) or masked outside its bounds (MiniRL)."""

    name: Literal["likelihood"] = "likelihood"
    low: float | None = setting(None, ge=0, description="smallest weight; null: none")
    cap: float | None = setting(5.0, gt=0, description="largest weight, absolute and not 1 + ε; null: none")
    outside: Literal["bound", "mask"] = setting(
        "bound",
        later=True,
        description="weights beyond low and cap are bounded; mask: they are 0 where PPO's clip has no gradient",
    )


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
class Fipo(Band):
    """PPO's clip; tokens weigh more if those that follow them have become likelier: a discounted sum of their ℓ."""

    name: Literal["fipo"] = "fipo"
    high: float = setting(0.28, ge=0, description="ε_high: width of the clip range above 1")
    dual: float = setting(10.0, gt=1, description="c of dual clipping; tokens with a larger ratio are left out of sums")
    half_life: float = setting(32.0, gt=0, description="tokens after which a later token counts for half")
    least: float = setting(1.0, ge=0, description="smallest weight")
    largest: float = setting(1.2, ge=0, description="largest weight")
    safety: float = setting(
        10.0, gt=0, description="where the advantage is negative and the ratio above this, weights are from 0.8 to 1"
    )

    def conflict(self) -> str:
        """The bounds of the weight in their order."""
        return "least must not be above largest." if self.least > self.largest else ""


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
