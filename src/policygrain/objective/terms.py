"""Advantages from rewards, aggregations of the terms of tokens to one loss, and penalties, which are such terms.

The modules of parts import no torch, so that methods are listed and checked without it; formulas use tensors' methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .clip import LARGEST_LOG, token_covariance
from .part import Need, Part, needs, setting

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import TokenBatch

EntropySignal = Literal["auto", "covariance"]
EPSILON = 1e-6


class Advantage(Part):
    """Â [prompts, group] from rewards; exactly 0 in a group of equal rewards, and in a group of one.

    A reward of NaN makes all advantages NaN that are computed with it, so that the step is refused.
    """


class Grpo(Advantage, name="grpo"):
    """(R_i − mean_j R_j) / (std + 1e-6) over the group, sample (n−1) standard deviation. GRPO (2402.03300)."""

    def __call__(self, rewards: Tensor) -> Tensor:
        if rewards.shape[1] < 2:
            return _centred(rewards)
        return _centred(rewards) / (rewards.to(_centred(rewards).dtype).std(1, keepdim=True) + EPSILON)


class DrGrpo(Advantage, name="dr_grpo"):
    """R_i − mean_j R_j over the group. Dr. GRPO (2503.20783)."""

    def __call__(self, rewards: Tensor) -> Tensor:
        return _centred(rewards)


class Rloo(Advantage, name="rloo"):
    """R_i − mean_{j≠i} R_j over the others of the group: leave-one-out. RLOO (2402.14740)."""

    def __call__(self, rewards: Tensor) -> Tensor:
        size = rewards.shape[1]
        return _centred(rewards) * (size / (size - 1) if size > 1 else 0.0)


def _centred(rewards: Tensor) -> Tensor:
    """R_i − mean_j R_j; exactly 0 in a group of equal rewards, whose mean may be rounded."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    # In double precision: where rewards are large and almost equal, a rounded mean would be off by their differences.
    centred = rewards.double() - rewards.double().mean(1, keepdim=True)
    return centred.masked_fill(equal, 0.0).to(rewards.dtype if rewards.is_floating_point() else rewards.float().dtype)


class Aggregation(Part):
    """Weights w [batch, tokens], 0 on padding, of the terms of tokens: the aggregate of x is Σ w·x.

    Counts are those of the whole optimizer step, so that micro-batches and ranks add up to the same loss and gradient.
    """


class TokenMean(Aggregation, name="token_mean"):
    """Mean over all tokens of the step: w = 1/Σ|o_i|. DAPO (2503.14476 eq. 8), TEPO, MPO."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / batch.whole.n_tokens


class SeqMeanTokenMean(Aggregation, name="seq_mean_token_mean"):
    """Mean over responses of the mean over their tokens: w = 1/(N |o_i|). GRPO (2402.03300 eq. 3), GSPO.

    N counts responses with a token in the loss.
    """

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / (batch.lengths.clamp(min=1).unsqueeze(1) * batch.whole.n_responses)


class SeqMeanTokenSum(Aggregation, name="seq_mean_token_sum"):
    """Mean over responses of the sum over their tokens: w = 1/N; longer responses weigh more. LUSPO (2602.05261)."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / batch.whole.n_responses


class SeqMeanTokenSumNorm(Aggregation, name="seq_mean_token_sum_norm"):
    """`seq_mean_token_sum` divided by the longest possible response: w = 1/(N L_max). Dr. GRPO (2503.20783)."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / (batch.whole.n_responses * batch.whole.max_length)


def _mask(batch: TokenBatch) -> Tensor:
    return batch.mask.to(batch.log_probs.dtype)


class Penalty(Part):
    """A term per token [batch, tokens], aggregated like the surrogate; values on padding have no influence."""


class Kl(Penalty, name="kl"):
    """λ · M ⊙ KL(π_θ ‖ π_reference), over all or some tokens, by the estimator k3: exp(d) − d − 1.

    d = log π_ref − log π_θ of the sampled token. With the mask of TEPO (2604.12736), M = 1 where the advantage is
    positive and the policy's entropy decreases; reference ``old`` and λ = 1 are our interpretation of that paper.
    """

    coefficient: float = setting(1.0, "λ", ge=0)
    reference: Literal["initial", "old"] = setting(
        "initial", "initial: the policy before training; old: the policy that sampled the batch"
    )
    mask: Literal["all", "positive_advantage_entropy_drop"] = setting(
        "all", "which tokens: all, or those with positive advantage and falling entropy (TEPO)"
    )
    entropy_signal: EntropySignal = setting(
        "auto",
        "how falling entropy is detected. auto: from measured entropies where the trainer gives them, else from the "
        "token's covariance; covariance: always from that",
    )

    def __call__(self, batch: TokenBatch) -> Tensor:
        reference_log_probs = batch.ref_log_probs if self.reference == "initial" else batch.old_log_probs
        if reference_log_probs is None:
            raise ValueError("a KL penalty to the initial policy needs ref_log_probs")
        estimate = k3(batch.log_probs, reference_log_probs)
        if self.mask == "positive_advantage_entropy_drop":
            estimate = estimate * entropy_drop_mask(batch, self.entropy_signal)
        return self.coefficient * estimate

    @property
    def needs(self) -> frozenset[Need]:
        reference = frozenset[Need]({"reference"} if self.reference == "initial" else ())
        return reference | frozenset[Need]({"step_log_probs"} if self.entropy_signal == "covariance" else ())


def k3(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """exp(d) − d − 1 ≥ 0, d = log π_ref − log π_θ: an unbiased, low-variance estimate of KL(π_θ ‖ π_ref)."""
    d = (reference_log_probs - log_probs).clamp(-LARGEST_LOG, LARGEST_LOG)
    return d.expm1() - d


def entropy_drop_mask(batch: TokenBatch, entropy_signal: EntropySignal = "auto") -> Tensor:
    """TEPO's M = 1[Â > 0] · 1[ΔH < 0], without gradient (2604.12736).

    With both entropies in the batch ΔH = H_t(π_θ) − H_t(π_old); without them, and with ``covariance``, ΔH < 0 where
    (log π_θ − mean)(Â − mean) > 0.
    """
    if entropy_signal == "covariance" or not batch.has_entropies:
        drops = token_covariance(batch) > 0
    else:
        assert batch.entropy is not None and batch.old_entropy is not None
        drops = batch.entropy.detach() < batch.old_entropy
    return (batch.advantages > 0) & drops & batch.mask


class EntropyBonus(Penalty, name="entropy_bonus"):
    """−α H_t(π_θ), with the entropy over the full vocabulary: a higher entropy lowers the loss."""

    coefficient: float = setting(0.001, "α")

    @needs("entropy_gradient")
    def __call__(self, batch: TokenBatch) -> Tensor:
        if batch.entropy is None:
            raise ValueError("an entropy bonus needs entropy")
        return -self.coefficient * batch.entropy


class KlCov(Penalty, name="kl_cov"):
    """KL-Cov (2505.22617 eq. 13): λ |ℓ_t| on the tokens of the step with the highest covariance.

    No token is chosen if all covariances are equal, as where all advantages are 0.
    """

    coefficient: float = setting(1.0, "λ", ge=0)
    fraction: float = setting(2e-3, "share of the step's tokens", ge=0, le=1)

    @needs("step_log_probs")
    def __call__(self, batch: TokenBatch) -> Tensor:
        step = batch.step_tensors
        covariance = token_covariance(step)[step.mask]
        if covariance.numel() == 0:
            return batch.log_probs.new_zeros(batch.log_probs.shape)
        count = max(1, round(self.fraction * covariance.numel()))
        threshold = covariance.topk(count).values[-1]
        chosen = (token_covariance(batch) >= threshold) & batch.mask & (covariance.max() > covariance.min())
        return self.coefficient * chosen * batch.log_ratio.abs()


class SquaredLogRatio(Penalty, name="squared_log_ratio"):
    """(β/2) ℓ_t²: a quadratic bound on how far each token's log-probability moves. DRO (2405.19107), as in Tinker.

    The paper squares the log-ratio of the whole response; Tinker that of each token, as here.
    """

    coefficient: float = setting(0.05, "β", ge=0)

    def __call__(self, batch: TokenBatch) -> Tensor:
        return self.coefficient / 2 * batch.log_ratio.square()
