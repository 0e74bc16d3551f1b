"""Divergences of two policies at a token, from its log-probabilities. All tensors are [batch, tokens]."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# exp of a number above about 88 overflows float32; the exact value of such a ratio does not matter.
LARGEST_LOG = 80.0
TINY = 1e-8


def k3(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """exp(d) − d − 1 ≥ 0, d = log π_ref − log π_θ: an unbiased, low-variance estimate of KL(π_θ ‖ π_ref)."""
    d = (reference_log_probs - log_probs).clamp(-LARGEST_LOG, LARGEST_LOG)
    return d.expm1() - d


def bernoulli_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) of two Bernoulli distributions, the sampled token against all others, from its log-probabilities."""
    p, q = (x.exp().clamp(max=1.0) for x in (log_p, log_q))  # a log-probability may be above 0 by rounding
    return p * (log_p - log_q) + (1 - p) * ((1 - p + TINY) / (1 - q + TINY)).log()
