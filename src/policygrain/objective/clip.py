"""Clips: the surrogate of each token, from its ratio and advantage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from .part import Part, needs, setting

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import TokenBatch

# exp of a number above about 88 overflows float32; the exact value of such a ratio does not matter.
LARGEST_LOG = 80.0
TINY = 1e-8


class Surrogate(NamedTuple):
    """u_t, and the masks of tokens clipped at the lower and at the upper bound. All [batch, tokens]."""

    value: Tensor
    low: Tensor
    high: Tensor
    silenced: bool = True  # whether these tokens have no gradient; False: their weight is bounded
    corrected: bool = False  # whether ``value`` already contains the weights of a rollout correction


class Clip(Part):
    """A bound on the effect of a ratio: the surrogate of each token from its ratio r [batch, tokens]."""


class ClipRange(Clip):
    """Clip range: ratios from 1 − low to 1 + high are not clipped."""

    low: float = setting(0.2, "ε_low: width of the clip range below 1", ge=0, le=1)
    high: float = setting(0.2, "ε_high: width of the clip range above 1", ge=0)


class PpoClip(ClipRange, name="ppo"):
    """u = min(r Â, clip(r, 1−ε_low, 1+ε_high) Â). PPO (1707.06347 eq. 7); ε_low ≠ ε_high is Clip-Higher (2503.14476).

    ``dual`` c bounds u from below by c Â where Â < 0 (dual-clip PPO, 1912.09729). Such tokens count as clipped at the
    upper bound, because their ratio is large.
    """

    dual: float | None = setting(
        None, "c of dual clipping, an upper bound of the ratio for negative advantages; null: off", gt=1
    )

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        low, high, advantages = 1 - self.low, 1 + self.high, batch.advantages
        value = (ratio * advantages).minimum(ratio.clamp(low, high) * advantages)
        is_low, is_high = (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)
        if self.dual is not None:
            bounded = (advantages < 0) & (ratio > self.dual)
            value = (self.dual * advantages).where(bounded, value)
            is_high = is_high | bounded
        return Surrogate(value, is_low & batch.mask, is_high & batch.mask)


class NoClip(Clip, name="none"):
    """No clip: u = r Â."""

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        nothing = batch.mask & False
        return Surrogate(ratio * batch.advantages, nothing, nothing)


class ClipCov(ClipRange, name="clip_cov"):
    """PPO's clip, and a random share of the step's tokens is detached. Clip-Cov (2505.22617 eq. 11).

    Tokens are drawn among unclipped ones whose covariance of log-probability and advantage is in [cov_low, cov_high].
    """

    fraction: float = setting(2e-4, "share of the step's tokens that get no gradient, drawn at random", ge=0, le=1)
    cov_low: float = setting(1.0, "smallest covariance of a token that may be drawn")
    cov_high: float = setting(5.0, "largest covariance of a token that may be drawn")

    @needs("step_log_probs")
    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        clipped = PpoClip(low=self.low, high=self.high)(ratio, batch)
        covariance = token_covariance(batch)
        candidates = self._within(covariance) & batch.mask & ~clipped.low & ~clipped.high
        step = batch.step_tensors
        n_candidates = (self._within(token_covariance(step)) & step.mask).sum()
        probability = self.fraction * batch.whole.n_tokens / n_candidates.clamp(min=1)
        chosen = candidates & (covariance.clone().uniform_() < probability)
        return Surrogate(clipped.value.detach().where(chosen, clipped.value), clipped.low, clipped.high)

    def _within(self, covariance: Tensor) -> Tensor:
        return (covariance >= self.cov_low) & (covariance <= self.cov_high)


def token_covariance(batch: TokenBatch) -> Tensor:
    """(log π_θ − mean)(Â − mean), means over the whole step's response tokens, without gradient. [batch, tokens].

    Source: 2505.22617 eq. 10. A positive value means that a natural-gradient step decreases the entropy.
    """
    step = batch.step_tensors
    centred = [x - step.mean(y) for x, y in ((batch.log_probs, step.log_probs), (batch.advantages, step.advantages))]
    return (centred[0] * centred[1]).detach() * batch.mask


class Likelihood(Clip, name="likelihood"):
    """u = sg[w] Â log π_θ: the ratio is a constant weight w, bounded (CISPO) or masked outside its bounds (MiniRL).

    ``outside: bound``: w = clip(r, low, cap), so no token loses its gradient. CISPO (2506.13585 eq. 4-5); cap 5 is
    ScaleRL's (2510.13786). ``mask``: w = r, and 0 where r > cap and Â > 0, or r < low and Â < 0. It has the gradient of
    PPO's clip. MiniRL (2512.01374), decoupled PPO.

    The value has the size of a log-probability, so it is not comparable with those of other clips. Tokens count
    as clipped where their weight is bounded or 0.
    """

    low: float | None = setting(None, "smallest weight; null: none", ge=0)
    cap: float | None = setting(5.0, "largest weight, absolute and not 1 + ε; null: none", gt=0)
    outside: Literal["bound", "mask"] = setting(
        "bound", "weights beyond low and cap are bounded; mask: they are 0 where PPO's clip has no gradient"
    )

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        weight, advantages = ratio.detach(), batch.advantages
        low, cap = 0.0 if self.low is None else self.low, math.inf if self.cap is None else self.cap
        is_low, is_high = (weight < low) & batch.mask, (weight > cap) & batch.mask
        if self.outside == "mask":
            is_low, is_high = is_low & (advantages < 0), is_high & (advantages > 0)
            weight = weight.masked_fill(is_low | is_high, 0.0)
        else:
            weight = weight.clamp(low, cap)
        return Surrogate(weight * advantages * batch.log_probs, is_low, is_high, silenced=self.outside == "mask")


class Gmpo(Clip, name="gmpo"):
    """Log-ratios are bounded before their mean over the response: u = exp((1/|o|) Σ_k ℓ̃_k) Â. GMPO (2507.20673).

    ℓ̃ = min(ℓ, high) where Â > 0 and max(ℓ, −low) where Â < 0. Each token is bounded by itself; the `sequence` ratio
    with PPO's clip bounds the mean. A bounded token has no gradient, but the other tokens of its response have one.
    The method's `ratio` is used only in metrics.
    """

    low: float = setting(0.4, "bound of ℓ below 0, where the advantage is negative", ge=0)
    high: float = setting(0.4, "bound of ℓ above 0, where the advantage is positive", ge=0)

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        log_ratio, advantages = batch.log_ratio, batch.advantages
        bounded = log_ratio.clamp(max=self.high).where(advantages > 0, log_ratio.clamp(min=-self.low))
        mean = (bounded * batch.mask).sum(1, keepdim=True) / batch.lengths.clamp(min=1).unsqueeze(1)
        value = mean.clamp(-LARGEST_LOG, LARGEST_LOG).exp() * advantages
        is_low, is_high = (log_ratio < -self.low) & (advantages < 0), (log_ratio > self.high) & (advantages > 0)
        return Surrogate(value, is_low & batch.mask, is_high & batch.mask)


class Sapo(Clip, name="sapo"):
    """u = (4/τ) σ(τ (r − 1)) Â: a sigmoid of the ratio instead of a clip. SAPO (2511.20347).

    No token is clipped. The derivative ∂u/∂r is 4σ(1−σ) Â, which is Â at r = 1 and falls on both sides.
    """

    positive: float = setting(1.0, "τ where the advantage is positive", gt=0)
    negative: float = setting(1.05, "τ elsewhere", gt=0)

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        temperature = _by_sign(batch.advantages > 0, self.positive, self.negative, ratio)
        nothing = batch.mask & False
        return Surrogate(4 / temperature * (temperature * (ratio - 1)).sigmoid() * batch.advantages, nothing, nothing)


class DppoTv(Clip, name="dppo_tv"):
    """No gradient for tokens whose probability has moved too far, a bound on total variation. DPPO (2602.04879).

    u = M r Â; M = 0 where π_θ − π_old > high (Â > 0) or π_old − π_θ > low (Â < 0) (eq. 11-13). Probabilities are of
    the sampled token, so the clip range of the ratio has the width δ/π_old, large for unlikely tokens.
    """

    low: float = setting(0.15, "δ_low: largest fall of the probability", ge=0)
    high: float = setting(0.15, "δ_high: largest rise of the probability", ge=0)

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        rise = batch.log_probs.detach().exp() - batch.old_log_probs.exp()
        return _masked(ratio, batch, rise < -self.low, rise > self.high)


class DppoKl(Clip, name="dppo_kl"):
    """No gradient for tokens whose probability has moved too far, a bound on the KL divergence. DPPO (2602.04879).

    u = M r Â; M = 0 where D > high (Â > 0, π_θ > π_old) or D > low (Â < 0, π_θ < π_old) (eq. 11, 12, 14).
    D = KL(π_old ‖ π_θ) of Bernoulli distributions, the sampled token against all others.
    """

    low: float = setting(0.05, "δ_low: largest divergence of a token that has become less likely", ge=0)
    high: float = setting(0.05, "δ_high: largest divergence of a token that has become more likely", ge=0)

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        new, old = batch.log_probs.detach(), batch.old_log_probs
        p, q = (x.exp().clamp(max=1.0) for x in (old, new))  # a log-probability may be above 0 by rounding
        divergence = p * (old - new) + (1 - p) * ((1 - p + TINY) / (1 - q + TINY)).log()
        return _masked(ratio, batch, (divergence > self.low) & (new < old), (divergence > self.high) & (new > old))


def _masked(ratio: Tensor, batch: TokenBatch, fallen: Tensor, risen: Tensor) -> Surrogate:
    """r Â, and 0 for tokens that have risen too far with a positive advantage, or fallen with a negative one."""
    is_low, is_high = fallen & (batch.advantages < 0) & batch.mask, risen & (batch.advantages > 0) & batch.mask
    return Surrogate((ratio * batch.advantages).masked_fill(is_low | is_high, 0.0), is_low, is_high)


class Vespo(Clip, name="vespo"):
    """The response's damped importance weight W as a constant weight: u = sg[W^k exp(λ (1 − W))] Â log π_θ. VESPO.

    Source: 2602.10693 section 3.4. W = exp Σ_k ℓ_k over the response; log W is bounded to [log 1e-8, 20]. W
    includes the weights of a rollout correction. No token counts as clipped.
    """

    positive_power: float = setting(2.0, "k where the advantage is at least 0", ge=0)
    positive_decay: float = setting(3.0, "λ where the advantage is at least 0", ge=0)
    negative_power: float = setting(3.0, "k elsewhere", ge=0)
    negative_decay: float = setting(2.0, "λ elsewhere", ge=0)

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        log_weight = batch.log_ratio.detach()
        if batch.rollout_weights is not None:
            log_weight = log_weight + batch.rollout_weights.where(batch.mask, 1.0).clamp(min=TINY).log()
        log_weight = (log_weight * batch.mask).sum(1, keepdim=True).clamp(math.log(TINY), 20.0)
        at_least_0 = batch.advantages >= 0
        power = _by_sign(at_least_0, self.positive_power, self.negative_power, ratio)
        decay = _by_sign(at_least_0, self.positive_decay, self.negative_decay, ratio).clamp(min=1e-4)
        phi = (power * log_weight + decay * (1 - log_weight.exp())).exp()
        nothing = batch.mask & False
        value = phi * batch.advantages * batch.log_probs
        return Surrogate(value, nothing, nothing, silenced=False, corrected=True)


def _by_sign(positive: Tensor, one: float, other: float, like: Tensor) -> Tensor:
    """``one`` where ``positive``, else ``other``, in the precision of ``like``."""
    return like.new_tensor(one).where(positive, like.new_tensor(other))


class Fipo(ClipRange, name="fipo"):
    """PPO's dual clip; tokens weigh more if those that follow them have become likelier. FIPO (2603.19835).

    The advantage is f Â, f_t = sg[clip(exp F_t, least, largest)], F_t = Σ_{k≥t} γ^{k−t} ℓ_k, γ = 2^(−1/half_life);
    tokens with r > ``dual`` add nothing to F. Defaults are those of the authors' recipe for 32B parameters.
    """

    high: float = setting(0.28, "ε_high: width of the clip range above 1", ge=0)
    dual: float = setting(10.0, "c of dual clipping; tokens with a larger ratio are left out of sums", gt=1)
    half_life: float = setting(32.0, "tokens after which a later token counts for half", gt=0)
    least: float = setting(1.0, "smallest weight", ge=0)
    largest: float = setting(1.2, "largest weight", ge=0)
    safety: float = setting(
        10.0, "where the advantage is negative and the ratio above this, weights are from 0.8 to 1", gt=0
    )

    def __post_init__(self) -> None:
        if self.least > self.largest:
            raise ValueError("least: must not be above largest")

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        r, advantages = ratio.detach(), batch.advantages
        change = batch.log_ratio.detach().masked_fill(r > self.dual, 0.0)
        future = batch.discounted_sum(change, 2 ** (-1 / self.half_life)).clamp(max=LARGEST_LOG)
        weight = future.exp().clamp(self.least, self.largest)
        weight = weight.clamp(0.8, 1.0).where((advantages < 0) & (r > self.safety), weight)
        ppo = PpoClip(low=self.low, high=self.high, dual=self.dual)
        return ppo(ratio, batch.replace(advantages=weight * advantages))


class Topr(Clip, name="topr"):
    """u = sg[w] Â log π_θ; w = 1 where Â > 0, and min(r, cap) elsewhere. TOPR (2503.14286 eq. 8).

    Responses with Â > 0 keep weight 1, however unlikely they have become; the weight of others falls with their ratio.
    No token loses its gradient. The paper's ratio is that of the response (`product`).
    """

    cap: float = setting(1.0, "largest weight where the advantage is not positive", gt=0)

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        weight, advantages = ratio.detach(), batch.advantages
        is_high = (weight > self.cap) & (advantages < 0) & batch.mask
        weight = weight.clamp(max=self.cap).masked_fill(advantages > 0, 1.0)
        return Surrogate(weight * advantages * batch.log_probs, batch.mask & False, is_high, silenced=False)


class M2po(Clip, name="m2po"):
    """u = M r Â; M = 0 for the tokens that moved furthest, so that the mean of ℓ² is at most ``budget``. M2PO.

    Source: 2510.01161 algorithm 1. Only tokens with Â (r − 1) > 0 count, which PPO's clip could silence: of the whole
    step, those with the largest ℓ² are masked until the mean over the others is within the budget. A masked token has
    value 0, and denominators do not change. The authors' code and AReaL's differ (docs/methods/newer.md).
    """

    budget: float = setting(0.04, "τ: largest mean of the squared log-ratio", gt=0)

    @needs("step_log_probs")
    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        step = batch.step_tensors
        squares = step.log_ratio.detach()[_pushed(step)].square().sort().values
        # Means of the smallest n, which grow with n.
        n_kept = int((squares.cumsum(0) / squares.new_ones(len(squares)).cumsum(0) <= self.budget).sum())
        # Tokens as far out as the first that is masked are masked with it.
        bound = float(squares[n_kept]) if n_kept < len(squares) else math.inf
        log_ratio = batch.log_ratio.detach()
        masked = _pushed(batch) & (log_ratio.square() >= bound)
        value = (ratio * batch.advantages).masked_fill(masked, 0.0)
        return Surrogate(value, masked & (log_ratio < 0), masked & (log_ratio > 0))


def _pushed(batch: TokenBatch) -> Tensor:
    """Tokens already moved in the direction of their advantage: Â ℓ > 0. [batch, tokens]."""
    return (batch.advantages * batch.log_ratio.detach() > 0) & batch.mask
