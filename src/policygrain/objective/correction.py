"""Corrections for rollouts of another policy: weights, rejection, and an anchor between the policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .clip import LARGEST_LOG

if TYPE_CHECKING:
    from .method import Grain, Sampler


def log_weights(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, grain: Grain) -> Tensor:
    """log π_old/μ of tokens that the engine μ sampled, without gradient, 0 on padding. [batch, tokens].

    ``grain``: of each `token`; the sum over the response (`sequence`), or the mean over it (`geometric`).
    """
    log_ratio = torch.where(mask != 0, (log_probs - rollout_log_probs).detach(), 0.0)
    if grain != "token":
        total = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
        log_ratio = total if grain == "sequence" else total / (mask != 0).sum(1, keepdim=True).clamp(min=1)
    return log_ratio.clamp(-LARGEST_LOG, LARGEST_LOG)


def rollout_weights(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, sampler: Sampler) -> Tensor:
    """Weights π_old/μ of tokens that the engine μ sampled, without gradient, 1 on padding. [batch, tokens].

    ``correction_outside: truncate``: min(max(w, floor), cap), truncated importance sampling; ``mask``: w inside
    [floor, cap], else 0. Without a cap all are 1. Tokens whose ratio at the ``rejection_grain`` is outside
    [rejection_low, rejection_high] have weight 0. This leaves the denominators of the loss as they are.
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
