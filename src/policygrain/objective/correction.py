"""Corrections for rollouts of another policy: weights of rollout correction, and the off-policy sequence mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .batch import TokenBatch
from .clip import LARGEST_LOG

if TYPE_CHECKING:
    from .method import Sampler


def rollout_weights(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, sampler: Sampler) -> Tensor:
    """Weights π_old/μ of tokens that the engine μ sampled, without gradient, 1 on padding. [batch, tokens].

    ``correction_grain``: of each ``token``, the product over the response (``sequence``) or its geometric mean
    (``geometric``). ``correction_outside: truncate``: min(max(w, floor), cap), truncated importance sampling; ``mask``:
    w inside [floor, cap], else 0. A weight of 0 leaves the denominators of the loss as they are. All are 1 without a
    cap.
    """
    floor, cap = sampler.correction_floor, sampler.correction_cap
    if cap is None:
        return torch.ones_like(log_probs)
    keep = mask != 0
    difference = torch.where(keep, (log_probs - rollout_log_probs).detach(), 0.0)
    if sampler.correction_grain != "token":
        difference = difference.sum(1, keepdim=True).expand_as(difference)
    if sampler.correction_grain == "geometric":
        difference = difference / keep.sum(1, keepdim=True).clamp(min=1)
    weights = difference.clamp(-LARGEST_LOG, LARGEST_LOG).exp()
    if sampler.correction_outside == "truncate":
        weights = weights.clamp(floor, cap)
    else:
        weights = torch.where((weights < floor) | (weights > cap), 0.0, weights)
    return torch.where(keep, weights, 1.0)


def effective_sample_share(weights: Tensor, mask: Tensor) -> float:
    """(Σw)² / (n Σw²) over the tokens of ``mask``: Kish's effective sample size over their number; 0 if all are 0."""
    values = weights[mask != 0].double()
    square = float(values.square().sum())
    return float(values.sum()) ** 2 / (len(values) * square) if square else 0.0


def off_policy_mask(batch: TokenBatch, bound: float) -> Tensor:
    """False where Â < 0 and (1/|o|) Σ_t (log μ − log π_θ) > ``bound``, without gradient. [batch, tokens].

    DeepSeek-V3.2 (2512.02556 eq. 9): responses with a negative advantage whose probability has fallen far. μ is
    ``rollout_log_probs``, or π_old where the batch has none.
    """
    sampled = batch.old_log_probs if batch.rollout_log_probs is None else batch.rollout_log_probs
    # NaN, from an engine that could not score a token, does not count.
    fall = (sampled - batch.log_probs.detach()).nan_to_num(nan=0.0)
    moved = fall.sum(1, keepdim=True) / batch.lengths.clamp(min=1).unsqueeze(1)
    return ~((batch.advantages < 0) & (moved > bound))
