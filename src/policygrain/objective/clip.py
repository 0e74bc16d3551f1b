"""Clips: the surrogate of each token, from its ratio and advantage.

Each function returns ``Surrogate(value, low, high)``: u_t, and the masks of the tokens at the lower and upper clip
bound, whose gradient is zero. All [batch, tokens].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .batch import TokenBatch


class Surrogate(NamedTuple):
    """u_t, and the masks of tokens clipped at the lower and at the upper bound."""

    value: Tensor
    low: Tensor
    high: Tensor


def ppo(
    ratio: Tensor, batch: TokenBatch, *, low: float = 0.2, high: float = 0.2, dual: float | None = None
) -> Surrogate:
    """u = min(r Â, clip(r, 1−ε_low, 1+ε_high) Â). PPO (1707.06347 eq. 7); ε_low ≠ ε_high is Clip-Higher (2503.14476).

    ``dual`` c > 1 bounds u from below by c Â where Â < 0 (dual-clip PPO, 1912.09729). Such tokens count as clipped at
    the upper bound, because their ratio is large.
    """
    if dual is not None and dual <= 1:
        raise ValueError(f"clip.dual must be above 1, got {dual}")
    advantages = batch.advantages
    value = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    is_low = (ratio < 1 - low) & (advantages < 0)
    is_high = (ratio > 1 + high) & (advantages > 0)
    if dual is not None:
        bounded = (advantages < 0) & (ratio > dual)
        value = torch.where(bounded, dual * advantages, value)
        is_high = is_high | bounded
    return Surrogate(value, is_low & batch.mask, is_high & batch.mask)


def none(ratio: Tensor, batch: TokenBatch) -> Surrogate:
    """u = r Â."""
    nothing = torch.zeros_like(batch.mask)
    return Surrogate(ratio * batch.advantages, nothing, nothing)


def clip_cov(
    ratio: Tensor,
    batch: TokenBatch,
    *,
    low: float = 0.2,
    high: float = 0.2,
    fraction: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
) -> Surrogate:
    """Clip-Cov (2505.22617 eq. 11): PPO's clip, and a random ``fraction`` of the step's tokens is detached.

    They are chosen among unclipped tokens whose covariance of log-probability and advantage is in [cov_low, cov_high].
    """
    clipped = ppo(ratio, batch, low=low, high=high)
    covariance = token_covariance(batch)
    candidates = (covariance >= cov_low) & (covariance <= cov_high) & batch.mask & ~clipped.low & ~clipped.high
    step = batch.step_tensors
    step_covariance = token_covariance(step)
    n_candidates = ((step_covariance >= cov_low) & (step_covariance <= cov_high) & step.mask).sum()
    probability = fraction * step.n_tokens / n_candidates.clamp(min=1)
    chosen = candidates & (torch.rand_like(covariance) < probability)
    return Surrogate(torch.where(chosen, clipped.value.detach(), clipped.value), clipped.low, clipped.high)


def token_covariance(batch: TokenBatch) -> Tensor:
    """(log π_θ − mean)(Â − mean), means over the whole step's response tokens, without gradient. [batch, tokens].

    Source: 2505.22617 eq. 10. A positive value means that a natural-gradient step decreases the entropy.
    """
    step = batch.step_tensors
    centred = [x - step.mean(y) for x, y in ((batch.log_probs, step.log_probs), (batch.advantages, step.advantages))]
    return (centred[0] * centred[1]).detach() * batch.mask
