"""The policy loss, ratio × clip × aggregation + penalties, and its corrections for rollouts of another policy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UserError
from .batch import TokenBatch
from .clip import LARGEST_LOG, Surrogate
from .terms import EntropySignal, Kl, entropy_drop_mask, k3

if TYPE_CHECKING:
    from .method import Grain, Method, Sampler

# Metrics that are 1.0 if a condition holds and missing otherwise.
FLAGS = ("mask_signal_covariance", "micro_batch_statistics")


@dataclass(frozen=True)
class LossOutput:
    """A scalar loss with gradient, and metrics (docs/results.md), which a GPU computes beside the backward pass."""

    loss: Tensor
    tensors: dict[str, Tensor]  # metrics as scalars on the device
    flags: dict[str, float]
    is_whole_step: bool

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Those of a whole step, or a micro-batch's share for `merge_metrics`; the first call waits for the device."""
        numbers = torch.stack([value.to(torch.float64) for value in self.tensors.values()]).tolist()
        parts = dict(zip(self.tensors, numbers, strict=True))
        return (merge_metrics([parts]) if self.is_whole_step else parts) | self.flags


def policy_loss(method: Method, batch: TokenBatch) -> LossOutput:
    """−Σ w u + Σ w (penalties) over the tokens of ``batch``, normalised by the whole optimizer step.

    Losses, gradients and metrics of micro-batches of one step add up to those of the step (``merge_metrics``).
    """
    flags = _flags(method, batch)
    batch = anchored(method, batch)
    # A larger exponent would overflow; clamped values are far outside any clip range.
    log_r = method.ratio(batch).clamp(-LARGEST_LOG, LARGEST_LOG)
    # Prefix products continue on padding, where they must not overflow or enter the metrics.
    r = torch.where(batch.mask, log_r, 0.0).exp()
    surrogate = method.clip(r, batch)
    value = surrogate.value
    if batch.rollout_weights is not None and not surrogate.corrected:
        value = value * batch.rollout_weights
    weights = method.aggregation(batch)
    policy = -(weights * value).sum()
    penalty = sum(((weights * p(batch)).sum() for p in method.penalties), start=torch.zeros_like(policy))
    with torch.no_grad():
        signal: EntropySignal = next((part.entropy_signal for part in method.penalties if isinstance(part, Kl)), "auto")
        metrics = _metrics(batch, r, surrogate, weights, signal)
        metrics |= {"policy_loss": policy.detach(), "penalty": penalty.detach(), "loss": (policy + penalty).detach()}
    return LossOutput(policy + penalty, metrics, flags, is_whole_step=batch.step is None)


def anchored(method: Method, batch: TokenBatch) -> TokenBatch:
    """The batch and its step, with the log-probabilities of the policy that ``method.anchor`` names as π_old.

    With ``loglinear`` also with the weights π_prox/μ, which change with π_θ. ValueError if the batch lacks a tensor.
    """
    if method.anchor == "old":
        return batch
    if batch.rollout_log_probs is None:
        raise ValueError(f"anchor: {method.anchor} needs rollout_log_probs, those of the engine that sampled")
    step = batch.step
    if step is not None and step.tensors is not None:
        step = replace(step, tensors=anchored(method, step.tensors))
    # An engine gives NaN for a token that it could not score.
    engine = batch.rollout_log_probs.where(~batch.rollout_log_probs.isnan(), batch.old_log_probs)
    if method.anchor == "rollout":
        return batch.replace(old_log_probs=engine, step=step)
    if batch.staleness is None:
        raise ValueError("anchor: loglinear needs staleness, the age of the policy that sampled, in versions")
    proximal = loglinear(batch.log_probs, engine, batch.staleness)
    weights = rollout_weights(proximal, engine, batch.mask, method.sampler)
    return batch.replace(old_log_probs=proximal, rollout_weights=weights, step=step)


def _flags(method: Method, batch: TokenBatch) -> dict[str, float]:
    flags: dict[str, float] = {}
    by_covariance = not batch.has_entropies and any(
        isinstance(part, Kl) and part.mask != "all" and part.entropy_signal == "auto" for part in method.penalties
    )
    if by_covariance:
        warnings.warn(
            f"{method.name}: the batch has no entropies, so the mask of its KL penalty uses covariances instead of "
            "measured entropies. Give TokenBatch `entropy` and `old_entropy`, or choose `entropy_signal: covariance`.",
            stacklevel=4,
        )
        flags["mask_signal_covariance"] = 1.0
    of_step = by_covariance or "step_log_probs" in method.needs
    if of_step and batch.step is not None and batch.step.tensors is None:
        flags["micro_batch_statistics"] = 1.0
    return flags


def _metrics(
    batch: TokenBatch, r: Tensor, surrogate: Surrogate, weights: Tensor, entropy_signal: EntropySignal
) -> dict[str, Tensor]:
    # w_t ∂u_t/∂log r_t: the weight of this token's ratio in the gradient, where u_t is w_t r_t Â_t.
    pull = weights * r * batch.advantages
    if batch.rollout_weights is not None and not surrogate.corrected:
        pull = pull * batch.rollout_weights
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
    if batch.has_entropies:
        metrics["mask_share"] = batch.mean(entropy_drop_mask(batch, entropy_signal).to(r.dtype))
    if batch.ref_log_probs is not None:
        metrics["kl_initial"] = batch.mean(k3(batch.log_probs, batch.ref_log_probs))
    return metrics


def merge_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of the whole step from those of its micro-batches: sums, and maxima of `…_max` and of flags."""
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


def check(method: Method) -> None:
    """Run a method on a small example with the tensors that its parts need and no others. UserError if it fails."""
    where, x = f"methods.{method.name}", torch.tensor([[-0.5, -1.0, -2.0], [-1.5, -0.1, -0.2]])
    log_probs, entropy = x.clone().requires_grad_(), (-x).requires_grad_()
    try:
        needed: dict[str, Any] = {
            "ref_log_probs": x - 0.2 if "reference" in method.needs else None,
            "future_log_probs": x if "mtp_heads" in method.needs else None,
            "old_future_log_probs": x if "mtp_heads" in method.needs else None,
            "groups": torch.tensor([0, 1]) if "groups" in method.needs else None,
            "staleness": torch.tensor([1, 3]) if "staleness" in method.needs else None,
        }
        mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
        batch = TokenBatch(
            log_probs, x - 0.1, torch.tensor([1.0, -1.0]), mask, entropy, -x, rollout_log_probs=x - 0.1, **needed
        )
        with torch.random.fork_rng(devices=[]):
            loss = method.loss(batch.replace(step=method.step_of(batch))).loss
        method.advantage(torch.zeros(2, 2))
        _, by_entropy = torch.autograd.grad(loss, [log_probs, entropy], allow_unused=True)
    except Exception as error:  # a custom function may raise anything
        raise UserError(f"{where}: the method does not work on a small example: {error}") from error
    if by_entropy is not None and by_entropy.any() and "entropy_gradient" not in method.needs:
        raise UserError(
            f"{where}: the loss depends on batch.entropy, which has no gradient in training unless a function declares "
            'it: `@needs("entropy_gradient")`.'
        )


# ---- corrections for rollouts of another policy ----------------------------------------------------------------------


def log_weights(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, grain: Grain) -> Tensor:
    """log π_old/μ of each `token`, its sum over the response (`sequence`) or mean (`geometric`); 0 on padding."""
    log_ratio = torch.where(mask != 0, (log_probs - rollout_log_probs).detach(), 0.0)
    log_ratio = log_ratio.nan_to_num(nan=0.0)  # of a token that the engine could not score
    if grain != "token":
        total = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
        log_ratio = total if grain == "sequence" else total / (mask != 0).sum(1, keepdim=True).clamp(min=1)
    return log_ratio.clamp(-LARGEST_LOG, LARGEST_LOG)


def rollout_weights(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, sampler: Sampler) -> Tensor:
    """Weights π_old/μ of tokens that the engine μ sampled, without gradient, 1 on padding. [batch, tokens].

    ``correction_outside: truncate``: min(max(w, floor), cap), truncated importance sampling; ``mask``: w inside
    [floor, cap], else 0. Tokens with a ratio outside of that for rejection have weight 0. Denominators do not change.
    """
    floor, cap = sampler.correction_floor, sampler.correction_cap
    weights = torch.ones_like(log_probs)
    if cap is not None:
        weights = log_weights(log_probs, rollout_log_probs, mask, sampler.correction_grain).exp()
        if sampler.correction_outside == "truncate":
            weights = weights.clamp(floor, cap)
        else:
            weights = torch.where((weights < floor) | (weights > cap), 0.0, weights)
    if sampler.rejection_high is not None:
        ratio = log_weights(log_probs, rollout_log_probs, mask, sampler.rejection_grain).exp()
        weights = weights.masked_fill((ratio < sampler.rejection_low) | (ratio > sampler.rejection_high), 0.0)
    return torch.where(mask != 0, weights, 1.0)


def loglinear(log_probs: Tensor, rollout_log_probs: Tensor, staleness: Tensor) -> Tensor:
    """log π_prox = log μ + α (log π_θ − log μ) without gradient, with α = (s − 1)/s, or 0 up to s = 1. [batch, tokens].

    A-3PO (2512.06547): a substitute for the policy one version before π_θ; s is the ``staleness`` of μ in versions.
    """
    alpha = 1 - 1 / staleness.to(log_probs.dtype).clamp(min=1)
    return rollout_log_probs.to(log_probs.dtype).lerp(log_probs.detach(), alpha)


def effective_sample_share(weights: Tensor, mask: Tensor) -> float:
    """(Σw)² / (n Σw²) over the tokens of ``mask``: Kish's effective sample size over their number; 0 if all are 0."""
    values = weights[mask != 0].double()
    square = float(values.square().sum())
    return float(values.sum()) ** 2 / (len(values) * square) if square else 0.0
