"""Penalties: terms per token, [batch, tokens], that are aggregated like the surrogate and added to the loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .batch import TokenBatch
from .clip import LARGEST_LOG, token_covariance

EntropySignal = Literal["auto", "measured", "covariance"]


def kl(
    batch: TokenBatch,
    *,
    coefficient: float = 1.0,
    reference: Literal["initial", "old"] = "initial",
    mask: Literal["all", "positive_advantage_entropy_drop"] = "all",
    entropy_signal: EntropySignal = "auto",
) -> Tensor:
    """λ · M ⊙ KL(π_θ ‖ π_reference) by the k3 estimator exp(d) − d − 1, d = log π_ref − log π_θ.

    ``reference`` is the frozen start policy or the behaviour policy. With the mask of TEPO (2604.12736), M = 1 where
    the advantage is positive and the policy's entropy decreases; reference ``old`` and λ = 1 are our interpretation of
    that paper.
    """
    reference_log_probs = batch.ref_log_probs if reference == "initial" else batch.old_log_probs
    if reference_log_probs is None:
        raise ValueError("a KL penalty to the initial policy needs ref_log_probs")
    estimate = k3(batch.log_probs, reference_log_probs)
    if mask == "positive_advantage_entropy_drop":
        estimate = estimate * entropy_drop_mask(batch, entropy_signal)
    return coefficient * estimate


def k3(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """exp(d) − d − 1 ≥ 0, d = log π_ref − log π_θ: an unbiased, low-variance estimate of KL(π_θ ‖ π_ref)."""
    d = (reference_log_probs - log_probs).clamp(-LARGEST_LOG, LARGEST_LOG)
    return torch.expm1(d) - d


def entropy_drop_mask(batch: TokenBatch, entropy_signal: EntropySignal = "auto") -> Tensor:
    """TEPO's M = 1[Â > 0] · 1[ΔH < 0], without gradient (2604.12736).

    ``measured``: ΔH = H_t(π_θ) − H_t(π_old). ``covariance``: ΔH < 0 where (log π_θ − mean)(Â − mean) > 0. ``auto`` is
    ``measured`` where the batch has both entropies, else ``covariance``. ValueError for ``measured`` without them.
    """
    if entropy_signal == "measured" and not batch.has_entropies:
        raise ValueError(
            "entropy_signal: measured needs entropy and old_entropy of TokenBatch; without them: covariance"
        )
    if entropy_signal == "covariance" or not batch.has_entropies:
        drops = token_covariance(batch) > 0
    else:
        assert batch.entropy is not None and batch.old_entropy is not None
        drops = batch.entropy.detach() < batch.old_entropy
    return (batch.advantages > 0) & drops & batch.mask


def entropy_bonus(batch: TokenBatch, *, coefficient: float = 0.001) -> Tensor:
    """−α H_t(π_θ), with the entropy over the full vocabulary: a higher entropy lowers the loss."""
    if batch.entropy is None:
        raise ValueError("an entropy bonus needs entropy")
    return -coefficient * batch.entropy


def kl_cov(batch: TokenBatch, *, coefficient: float = 1.0, fraction: float = 2e-3) -> Tensor:
    """KL-Cov (2505.22617 eq. 13): λ |ℓ_t| on the ``fraction`` of the step's tokens with the highest covariance."""
    step = batch.step_tensors
    covariance = token_covariance(step)[step.mask]
    if covariance.numel() == 0:
        return torch.zeros_like(batch.log_probs)
    count = max(1, round(fraction * covariance.numel()))
    threshold = covariance.topk(count).values[-1]
    chosen = (token_covariance(batch) >= threshold) & batch.mask
    return coefficient * chosen * batch.log_ratio.abs()


def squared_log_ratio(batch: TokenBatch, *, coefficient: float = 0.05) -> Tensor:
    """(β/2) ℓ_t²: a quadratic bound on how far each token's log-probability moves. DRO (2405.19107), as in Tinker.

    The paper squares the log-ratio of the whole response; Tinker that of each token, as here.
    """
    return coefficient / 2 * batch.log_ratio.square()
