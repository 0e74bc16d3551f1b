"""The policy loss: ratio × clip × aggregation + penalties. One function for all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import TokenBatch
from .clip import LARGEST_LOG, Surrogate
from .correction import off_policy_mask
from .penalty import EntropySignal, entropy_drop_mask, k3

# Metrics that are 1.0 where something holds and missing otherwise.
FLAGS = ("mask_signal_covariance", "micro_batch_statistics")

Ratio = Callable[[TokenBatch], Tensor]
Clip = Callable[[Tensor, TokenBatch], Surrogate]
Aggregation = Callable[[TokenBatch], Tensor]
Penalty = Callable[[TokenBatch], Tensor]


@dataclass(frozen=True)
class LossOutput:
    """``loss`` is a scalar with gradient, ``metrics`` are floats (see docs/glossary.md)."""

    loss: Tensor
    metrics: dict[str, float]


def policy_loss(
    batch: TokenBatch,
    ratio: Ratio,
    clip: Clip,
    aggregation: Aggregation,
    penalties: Iterable[Penalty] = (),
    *,
    entropy_signal: EntropySignal = "auto",
    off_policy_bound: float | None = None,
) -> LossOutput:
    """−Σ w u + Σ w (penalties) over the tokens of ``batch``, normalised by the whole optimizer step.

    ``off_policy_bound``: δ of the off-policy sequence mask, which multiplies u; None: no mask. Losses, gradients and
    metrics of micro-batches of one step add up to those of the step (``merge_metrics``).
    """
    r = importance(batch, ratio)
    surrogate = clip(r, batch)
    value = surrogate.value
    if batch.rollout_weights is not None and not surrogate.corrected:
        value = value * batch.rollout_weights
    masked: dict[str, Tensor] = {}
    if off_policy_bound is not None:
        kept = off_policy_mask(batch, off_policy_bound)
        value = torch.where(kept, value, 0.0)
        masked = {"off_policy_masked_share": batch.mean((~kept).to(r.dtype))}
    weights = aggregation(batch)
    policy = -(weights * value).sum()
    penalty = sum(((weights * p(batch)).sum() for p in penalties), start=torch.zeros_like(policy))
    with torch.no_grad():
        metrics = _metrics(batch, r, surrogate, weights, entropy_signal)
        metrics |= masked | {
            "policy_loss": policy.detach(),
            "penalty": penalty.detach(),
            "loss": (policy + penalty).detach(),
        }
        names, values = zip(*metrics.items(), strict=True)
        # One transfer from the device for all metrics.
        numbers = torch.stack([v.to(torch.float64) for v in values]).tolist()
    parts = dict(zip(names, numbers, strict=True))
    return LossOutput(policy + penalty, parts if batch.step is not None else merge_metrics([parts]))


def importance(batch: TokenBatch, ratio: Ratio) -> Tensor:
    """r_t, 1 on padding. [batch, tokens]."""
    # A larger exponent would overflow; clamped values are far outside any clip range.
    log_r = ratio(batch).clamp(-LARGEST_LOG, LARGEST_LOG)
    # Prefix products continue on padding, where they must not overflow or enter the metrics.
    return torch.where(batch.mask, log_r, 0.0).exp()


def _metrics(
    batch: TokenBatch, r: Tensor, surrogate: Surrogate, weights: Tensor, entropy_signal: EntropySignal
) -> dict[str, Tensor]:
    # w_t ∂u_t/∂log r_t: the weight of this token's ratio in the gradient.
    pull = weights * r * batch.advantages
    if surrogate.silenced:
        pull = torch.where(surrogate.low | surrogate.high, 0.0, pull)
    metrics = {
        "gradient_from_positive": pull.clamp(min=0).sum(),
        "gradient_from_negative": -pull.clamp(max=0).sum(),
        # Double precision: the variance of ratios near 1 is a difference of two numbers near 1.
        "ratio_mean": batch.mean(r.double()),
        "ratio_square_mean": batch.mean(r.double().square()),
        "ratio_max": torch.where(batch.mask, r, 0.0).amax() if r.numel() else r.new_zeros(()),
        "clip_fraction_low": batch.mean(surrogate.low.to(r.dtype)),
        "clip_fraction_high": batch.mean(surrogate.high.to(r.dtype)),
        "kl_old": batch.mean(k3(batch.old_log_probs, batch.log_probs)),
    }
    if batch.entropy is not None:
        metrics["entropy"] = batch.mean(batch.entropy)
    if batch.entropy is not None and batch.old_entropy is not None:
        metrics["mask_share"] = batch.mean(entropy_drop_mask(batch, entropy_signal).to(r.dtype))
    if batch.ref_log_probs is not None:
        metrics["kl_initial"] = batch.mean(k3(batch.log_probs, batch.ref_log_probs))
    return metrics


def merge_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of the whole step from those of its micro-batches: sums, and the maximum of `…_max` and of flags."""
    merged = {
        name: (max if name.endswith("_max") or name in FLAGS else sum)(part[name] for part in parts)
        for name in parts[0]
    }
    square, mean = merged.pop("ratio_square_mean"), merged["ratio_mean"]
    positive, negative = merged.pop("gradient_from_positive"), merged.pop("gradient_from_negative")
    return merged | {
        # From the mean square, because variances of micro-batches do not add up; max: rounding may give less than 0.
        "ratio_variance": max(0.0, square - mean**2),
        # Kish's effective sample size, (Σr)² / (n Σr²).
        "effective_sample_share": mean**2 / square if square else 0.0,
        "positive_gradient_share": positive / (positive + negative) if positive + negative else 0.0,
    }
