"""Clips: the surrogate of each token, from its ratio and advantage.

Each function returns ``Surrogate(value, low, high)``: u_t, and the masks of the tokens at the lower and upper clip
bound, whose gradient is zero. All [batch, tokens].
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .batch import TokenBatch

# exp of a number above about 88 overflows float32; the exact value of such a ratio is of no use.
LARGEST_LOG = 80.0
TINY = 1e-8
LEAST_LOG_WEIGHT = math.log(TINY)


class Surrogate(NamedTuple):
    """u_t, and the masks of tokens clipped at the lower and at the upper bound."""

    value: Tensor
    low: Tensor
    high: Tensor
    silenced: bool = True  # whether these tokens have no gradient; False: their weight is bounded
    corrected: bool = False  # whether the weights of a rollout correction are in the value already


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


def likelihood(
    ratio: Tensor,
    batch: TokenBatch,
    *,
    low: float | None = None,
    cap: float | None = 5.0,
    outside: Literal["bound", "mask"] = "bound",
) -> Surrogate:
    """u = sg[w] Â log π_θ: the ratio is a constant weight w of the token's gradient.

    ``outside: bound``: w = clip(r, low, cap), so no token loses its gradient. CISPO (2506.13585 eq. 4-5); cap 5 is
    ScaleRL's (2510.13786). ``mask``: w = r, and 0 where r > cap and Â > 0, or r < low and Â < 0. It has the gradient of
    PPO's clip. MiniRL (2512.01374), decoupled PPO.

    Bounds are absolute, not 1 ± ε. The value has the size of a log-probability, so that it cannot be compared with
    those of other clips. Tokens count as clipped where their weight is bounded or 0.
    """
    weight = ratio.detach()
    if outside == "mask":
        fallen = weight < (0.0 if low is None else low)
        risen = weight > (math.inf if cap is None else cap)
        is_low, is_high = fallen & (batch.advantages < 0) & batch.mask, risen & (batch.advantages > 0) & batch.mask
        weight = torch.where(is_low | is_high, 0.0, weight)
        return Surrogate(weight * batch.advantages * batch.log_probs, is_low, is_high)
    is_low, is_high = (torch.zeros_like(batch.mask) for _ in range(2))
    if low is not None:
        is_low, weight = ratio < low, weight.clamp(min=low)
    if cap is not None:
        is_high, weight = ratio > cap, weight.clamp(max=cap)
    value = weight * batch.advantages * batch.log_probs
    return Surrogate(value, is_low & batch.mask, is_high & batch.mask, silenced=False)


def gmpo(ratio: Tensor, batch: TokenBatch, *, low: float = 0.4, high: float = 0.4) -> Surrogate:
    """u = exp((1/|o|) Σ_k ℓ̃_k) Â, ℓ̃ = min(ℓ, high) where Â > 0 and max(ℓ, −low) where Â < 0. GMPO (2507.20673).

    Tokens are bounded in log space, each by itself, before the mean; the `sequence` ratio with PPO's clip bounds the
    mean. A bounded token has no gradient, its response still has one. ``ratio`` is only what metrics show.
    """
    log_ratio, advantages = batch.log_ratio, batch.advantages
    bounded = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-low))
    mean = (bounded * batch.mask).sum(1, keepdim=True) / batch.lengths.clamp(min=1).unsqueeze(1)
    value = mean.clamp(-LARGEST_LOG, LARGEST_LOG).exp() * advantages
    is_low, is_high = (log_ratio < -low) & (advantages < 0), (log_ratio > high) & (advantages > 0)
    return Surrogate(value, is_low & batch.mask, is_high & batch.mask)


def sapo(ratio: Tensor, batch: TokenBatch, *, positive: float = 1.0, negative: float = 1.05) -> Surrogate:
    """u = (4/τ) σ(τ (r − 1)) Â, τ = ``positive`` where Â > 0, else ``negative``. SAPO (2511.20347).

    No token is clipped. The gradient by r is 4σ(1−σ) Â, which is Â at r = 1 and falls on both sides.
    """
    advantages = batch.advantages
    temperature = _by_sign(advantages > 0, positive, negative, ratio)
    nothing = torch.zeros_like(batch.mask)
    return Surrogate(4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantages, nothing, nothing)


def dppo_tv(ratio: Tensor, batch: TokenBatch, *, low: float = 0.15, high: float = 0.15) -> Surrogate:
    """u = M r Â; M = 0 where π_θ − π_old > ``high`` (Â > 0) or π_old − π_θ > ``low`` (Â < 0).

    DPPO (2602.04879 eq. 11-13). Probabilities are of the sampled token, so the band of the ratio is δ/π_old: wide for
    unlikely tokens.
    """
    rise = batch.log_probs.detach().exp() - batch.old_log_probs.exp()
    return _masked(ratio, batch, rise < -low, rise > high)


def dppo_kl(ratio: Tensor, batch: TokenBatch, *, low: float = 0.05, high: float = 0.05) -> Surrogate:
    """u = M r Â; M = 0 where D > ``high`` (Â > 0, π_θ > π_old) or D > ``low`` (Â < 0, π_θ < π_old).

    DPPO (2602.04879 eq. 11, 12, 14). D is the KL divergence of two Bernoulli variables, the sampled token or another
    one, π_old first.
    """
    # A log-probability may be above 0 by rounding.
    new, old = (x.detach().exp().clamp(max=1.0) for x in (batch.log_probs, batch.old_log_probs))
    other = torch.log((1 - old + TINY) / (1 - new + TINY))
    divergence = old * (batch.old_log_probs - batch.log_probs.detach()) + (1 - old) * other
    return _masked(ratio, batch, (divergence > low) & (new < old), (divergence > high) & (new > old))


def _masked(ratio: Tensor, batch: TokenBatch, fallen: Tensor, risen: Tensor) -> Surrogate:
    """r Â, and 0 for tokens that have risen too far with a positive advantage, or fallen with a negative one."""
    is_low, is_high = fallen & (batch.advantages < 0) & batch.mask, risen & (batch.advantages > 0) & batch.mask
    return Surrogate(torch.where(is_low | is_high, 0.0, ratio * batch.advantages), is_low, is_high)


def vespo(
    ratio: Tensor,
    batch: TokenBatch,
    *,
    positive_power: float = 2.0,
    positive_decay: float = 3.0,
    negative_power: float = 3.0,
    negative_decay: float = 2.0,
) -> Surrogate:
    """u = sg[φ(W)] Â log π_θ, W = exp Σ_k ℓ_k, φ(W) = W^k exp(λ (1 − W)). VESPO (2602.10693 section 3.4).

    k and λ are the positive ones where Â ≥ 0. W is the product over the response; log W is bounded to [log 1e-8, 20].
    The weights of a rollout correction belong into W. No token counts as clipped.
    """
    log_weight = batch.log_ratio.detach()
    if batch.rollout_weights is not None:
        log_weight = log_weight + torch.where(batch.mask, batch.rollout_weights, 1.0).clamp(min=TINY).log()
    log_weight = (log_weight * batch.mask).sum(1, keepdim=True).clamp(LEAST_LOG_WEIGHT, 20.0)
    at_least_0 = batch.advantages >= 0
    power = _by_sign(at_least_0, positive_power, negative_power, ratio)
    decay = _by_sign(at_least_0, positive_decay, negative_decay, ratio).clamp(min=1e-4)
    phi = (power * log_weight + decay * (1 - log_weight.exp())).exp()
    nothing = torch.zeros_like(batch.mask)
    value = phi * batch.advantages * batch.log_probs
    return Surrogate(value, nothing, nothing, silenced=False, corrected=True)


def _by_sign(positive: Tensor, one: float, other: float, like: Tensor) -> Tensor:
    """``one`` where ``positive``, else ``other``, in the precision of ``like``."""
    return torch.where(positive, like.new_tensor(one), like.new_tensor(other))


def fipo(
    ratio: Tensor,
    batch: TokenBatch,
    *,
    low: float = 0.2,
    high: float = 0.28,
    dual: float = 10.0,
    half_life: float = 32.0,
    least: float = 1.0,
    largest: float = 1.2,
    safety: float = 10.0,
) -> Surrogate:
    """PPO's dual clip with the advantage f Â, f_t = sg[clip(exp F_t, least, largest)], F_t = Σ_{k≥t} γ^{k−t} ℓ_k.

    FIPO (2603.19835): tokens count for more if what follows them has become likelier. γ = 2^(−1/half_life); tokens with
    r > ``dual`` add nothing to F; where Â < 0 and r > ``safety``, f is bounded to [0.8, 1]. Numbers are those of the
    authors' recipe for 32B parameters.
    """
    change = torch.where(ratio.detach() > dual, 0.0, batch.log_ratio.detach())
    weight = discounted_sum(change, 2 ** (-1 / half_life)).clamp(max=LARGEST_LOG).exp().clamp(least, largest)
    weight = torch.where((batch.advantages < 0) & (ratio.detach() > safety), weight.clamp(0.8, 1.0), weight)
    weighted = batch.replace(advantages=weight * batch.advantages)
    return ppo(ratio, weighted, low=low, high=high, dual=dual)


def discounted_sum(x: Tensor, discount: float, block: int = 128) -> Tensor:
    """Σ_{k≥t} γ^{k−t} x_k along the last axis. [batch, tokens]. Blocks of matrix products: T² would not fit."""
    width = x.shape[1]
    place = torch.arange(block, device=x.device, dtype=x.dtype)
    powers = torch.where(place[:, None] >= place, discount ** (place[:, None] - place), 0.0)  # [k, t]
    out, after = torch.empty_like(x), x.new_zeros(len(x), 1)
    for start in reversed(range(0, width, block)):
        end = min(start + block, width)
        size = end - start
        own = x[:, start:end] @ powers[:size, :size]
        out[:, start:end] = own + after * discount ** (size - place[:size])
        after = out[:, start : start + 1]
    return out


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
