"""Importance ratios, of tokens, prefixes, blocks and responses.

Each maps a batch, whose ``log_ratio`` is ℓ, to log r [batch, tokens]; the caller exponentiates. Unless a ratio says
otherwise, the gradient flows through every ℓ in it, not only through that of its own position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from .part import Need, Part, needs, setting

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import TokenBatch


class Ratio(Part):
    """log r [batch, tokens] of an importance ratio r; values on padding have no influence."""


class TokenRatio(Ratio, name="token"):
    """Each token by itself: log r_t = ℓ_t. PPO, GRPO (2402.03300), DAPO (2503.14476)."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.log_ratio


class SequenceRatio(Ratio, name="sequence"):
    """Geometric mean over the response: log r_t = (1/|o|) Σ_k ℓ_k, for every t. GSPO (2507.18071 eq. 7), TEPO."""

    stop_gradient: bool = setting(False, "true: GSPO-token, the same value, but the gradient of each token's own ratio")

    def __call__(self, batch: TokenBatch) -> Tensor:
        log_ratio = batch.log_ratio
        mean = log_ratio.sum(1, keepdim=True) / batch.lengths.clamp(min=1).unsqueeze(1)
        return _own_gradient(mean, log_ratio) if self.stop_gradient else mean.expand_as(log_ratio)


class PrefixRatio(Ratio, name="prefix"):
    """Product up to each token, the exact importance weight of the prefix: log r_t = Σ_{k≤t} ℓ_k.

    TEPO is compared with it (2510.09369 fig. 5). With the gradient of each token's ``own`` ℓ it is CTPO (2605.07331).
    """

    gradient: Literal["all", "own"] = setting(
        "all",
        "all: the gradient flows through all tokens of the prefix; own: the product is a constant weight "
        "of the token's gradient",
    )

    def __call__(self, batch: TokenBatch) -> Tensor:
        total = batch.log_ratio.cumsum(1)
        return total if self.gradient == "all" else _own_gradient(total, batch.log_ratio)


class ProductRatio(Ratio, name="product"):
    """The exact importance weight of the response: log r_t = Σ_k ℓ_k, for every t, with the gradient of ℓ_t alone.

    The gradients of a response's tokens add up to that of the product. ``cap`` is truncated importance sampling
    (IMPALA, 1802.01561): tokens with a larger product keep their gradient, with weight C, which a clip would remove.
    """

    cap: float | None = setting(None, "C: the weight is at most this, and keeps its gradient; null: off", ge=1)

    def __call__(self, batch: TokenBatch) -> Tensor:
        total = batch.log_ratio.sum(1, keepdim=True)
        return _own_gradient(total if self.cap is None else total.clamp(max=math.log(self.cap)), batch.log_ratio)


def _own_gradient(log_r: Tensor, log_ratio: Tensor) -> Tensor:
    """``log_r`` in value, with the gradient of each token's own ℓ."""
    return log_r.detach() + (log_ratio - log_ratio.detach())


class Block(Ratio, name="block"):
    """K consecutive tokens are one action: log r_t = Σ_n β_n ℓ_{t+n}. MPO (2602.14386).

    With the weights ``uniform`` and ``future``, β are renormalised where the response ends inside a window. ``joint``
    is the exact ratio of the block's tokens, and a shorter block is simply a shorter product (our reading:
    renormalising it would not be a ratio of probabilities).

    With ``future: mtp_heads``, heads predict the later tokens from the hidden state that predicts t, as in MPO's
    published form. ``layout: turns``: the mask is 0 on what stands between turns, such as tool output.

    The sum of the β of an ℓ over its windows is its coverage, its weight in the on-policy gradient, which is not 1
    where the response begins and ends. ``edges: normalised`` divides the gradient, and not the value, by it.
    """

    size: int = setting(5, "block size K, in tokens", ge=1, le=1_000_000)
    layout: Literal["sliding", "tiled", "turns"] = setting(
        "sliding",
        "sliding: a window t..t+K−1 starts at each token; tiled: disjoint blocks; turns: the unbroken runs of the "
        "response mask, which tool output interrupts, whatever the `size`",
    )
    weights: Literal["uniform", "future", "joint"] = setting(
        "future", "uniform: 1/K each; future: 1−φ for the token itself, φ/(K−1) for each other; joint: 1 each"
    )
    future_weight: float = setting(0.3, "φ, total weight of the later tokens, with weights: future", ge=0, lt=1)
    future: Literal["backbone", "mtp_heads"] = setting(
        "backbone", "which probabilities of later tokens are used: the model's or those of prediction heads"
    )
    edges: Literal["as_published", "normalised"] = setting(
        "as_published",
        "normalised: each token's gradient is divided by its weight over all blocks, which is not 1 at the "
        "response's ends",
    )

    def __post_init__(self) -> None:
        if self.layout == "turns" and self.weights == "future":
            raise ValueError("weights: must be uniform or joint with layout: turns")
        if self.future == "mtp_heads" and (self.layout != "sliding" or self.size < 2):
            raise ValueError("future: mtp_heads needs layout: sliding and a size of at least 2")
        if self.future == "mtp_heads" and self.edges == "normalised":
            raise ValueError("edges: normalised needs future: backbone")

    def __call__(self, batch: TokenBatch) -> Tensor:
        log_ratio = batch.log_ratio
        if self.edges == "normalised":
            constant = log_ratio.detach()
            log_ratio = constant + (log_ratio - constant) / self.coverage(batch).to(log_ratio.dtype)
        log_sum, count = self._sum(log_ratio, batch), self._sum(batch.mask.to(log_ratio.dtype), batch)
        if self.future == "mtp_heads":
            if batch.future_log_probs is None or batch.old_future_log_probs is None:
                raise ValueError("block.future: mtp_heads needs future_log_probs and old_future_log_probs")
            log_sum = log_ratio + (batch.future_log_probs - batch.old_future_log_probs)
        # The β-weighted sum over a window is β_n·(sum over it) + (β_0 − β_n)·ℓ_t, and so is the sum of its β.
        beta_0, beta_n = self.beta
        weighted = beta_n * log_sum + (beta_0 - beta_n) * log_ratio
        if self.weights != "joint":
            weighted = weighted / (beta_n * count.clamp(min=1) + (beta_0 - beta_n))
        return weighted.to(log_ratio.dtype)

    @property
    def beta(self) -> tuple[float, float]:
        """(β_0, β_n for n ≥ 1) of a whole window; those of a turn are all the same."""
        if self.weights == "joint" or self.size == 1 or self.layout == "turns":
            return 1.0, 1.0
        if self.weights == "uniform":
            return 1 / self.size, 1 / self.size
        return 1 - self.future_weight, self.future_weight / (self.size - 1)

    def coverage(self, batch: TokenBatch) -> Tensor:
        """Σ_t β_{k−t}: the β of token k, added up over all windows that contain it; 1 on padding. [batch, tokens]."""
        beta_0, beta_n = self.beta
        live = batch.mask.double()
        # The reciprocal of the divisor of a window's β.
        count = self._sum(live, batch)
        scale = live if self.weights == "joint" else live / (beta_n * count.clamp(min=1) + (beta_0 - beta_n))
        over_windows = self._sum(scale, batch, back=True)
        return (beta_n * over_windows + (beta_0 - beta_n) * scale).where(batch.mask, 1.0)

    def _sum(self, x: Tensor, batch: TokenBatch, *, back: bool = False) -> Tensor:
        """Σ of ``x`` over the window of each token; ``back``: over the windows that contain the token."""
        if self.layout == "sliding":
            return batch.sum_over_windows(x, self.size, back=back)
        return batch.sum_over_blocks(x, None if self.layout == "turns" else self.size)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"mtp_heads"} if self.n_mtp_heads else ())

    @property
    def n_mtp_heads(self) -> int:
        """One for each token of the block except the first, with future: mtp_heads."""
        return self.size - 1 if self.future == "mtp_heads" else 0


class GroupExpectation(Ratio, name="group_expectation"):
    """The response's mean probability over its expectation in the group: p_i / E_q[q], for every t. GEPO (2508.17850).

    p and q are geometric means over the response, p_i = exp((1/|o_i|) Σ_t log π_θ) and q_i the same with π_old, and
    E_q[q] = Σ_j q_j² / Σ_j q_j over the responses j of the prompt. On-policy the ratio is not 1.
    """

    @needs("groups")
    def __call__(self, batch: TokenBatch) -> Tensor:
        responses = batch.responses
        assert batch.groups is not None
        if responses.old_log_probs is None:
            raise ValueError("ratio group_expectation: StepTotals.responses needs old_log_probs")
        log_q = responses.old_log_probs / responses.lengths.clamp(min=1)
        q = log_q.exp().where(responses.lengths > 0, 0.0)
        squares, sums = (responses.sum_by_group(x, batch.groups) for x in (q.square(), q))
        # Groups without a token in the loss have no expectation (0/0), and no token reads it.
        expected = (squares / sums).nan_to_num(nan=1.0)
        log_p = batch.log_probs.sum(1) / batch.lengths.clamp(min=1)
        return (log_p - expected.log()).unsqueeze(1).expand_as(batch.log_probs)


class NoRatio(Ratio, name="none"):
    """No ratio: 1 in value, ∇log π_θ in gradient. REINFORCE."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.log_ratio - batch.log_ratio.detach()
