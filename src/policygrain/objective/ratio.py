"""The ratio: at which grain importance is measured.

Each function maps a batch, whose ``log_ratio`` is ℓ, to log r [batch, tokens]; the caller exponentiates. Unless a
function says otherwise, the gradient flows through every ℓ in a ratio, not only through that of its own position.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import TokenBatch

BlockWeights = Literal["uniform", "future", "joint"]
BlockLayout = Literal["sliding", "tiled", "segments"]


def token(batch: TokenBatch) -> Tensor:
    """Each token by itself: log r_t = ℓ_t. PPO, GRPO (arXiv 2402.03300), DAPO (2503.14476)."""
    return batch.log_ratio


def sequence(batch: TokenBatch, *, stop_gradient: bool = False) -> Tensor:
    """Geometric mean over the response: log r_t = (1/|o|) Σ_k ℓ_k, for every t. GSPO (2507.18071 eq. 7), TEPO.

    ``stop_gradient`` gives GSPO-token: the same value, the gradient of ℓ_t alone at each t.
    """
    log_ratio = batch.log_ratio
    mean = log_ratio.sum(1, keepdim=True) / batch.lengths.clamp(min=1).unsqueeze(1)
    return _own_gradient(mean, log_ratio) if stop_gradient else mean.expand_as(log_ratio)


def prefix(batch: TokenBatch, *, gradient: Literal["all", "own"] = "all") -> Tensor:
    """The exact correction for reaching o_≤t: log r_t = Σ_{k≤t} ℓ_k. TEPO's contrast (2510.09369 fig. 5).

    ``gradient``: through ``all`` ℓ of the prefix, or through the token's ``own`` alone, so that the product over the
    prefix is a constant weight of ∇ log π_θ(o_t): CTPO (2605.07331).
    """
    total = batch.log_ratio.cumsum(1)
    return total if gradient == "all" else _own_gradient(total, batch.log_ratio)


def product(batch: TokenBatch, *, cap: float | None = None) -> Tensor:
    """The exact importance weight of the response: log r_t = Σ_k ℓ_k, for every t, with the gradient of ℓ_t alone.

    The product is a constant weight of each token's ∇ log π_θ(o_t), so the gradients of a response's tokens add up to
    that of the product itself. (If the gradient flowed through every ℓ at each t, they would add up to |o| times it.)

    ``cap`` C ≥ 1 truncates the weight to min(r, C), as truncated importance sampling does (IMPALA, 1802.01561): above C
    the weight no longer grows, and the tokens keep their gradient, with weight C. A clip would remove it.
    """
    if cap is not None and cap < 1:
        raise ValueError(f"product.cap must be at least 1, got {cap}")
    total = batch.log_ratio.sum(1, keepdim=True)
    return _own_gradient(total if cap is None else total.clamp(max=math.log(cap)), batch.log_ratio)


def group_expectation(batch: TokenBatch) -> Tensor:
    """p_i / E_q[q], for every t: the response's probability over what π_old expects of its group. GEPO (2508.17850).

    p and q are geometric means over the response, p_i = exp((1/|o_i|) Σ_t log π_θ) and q_i the same of π_old, and
    E_q[q] = Σ_j q_j² / Σ_j q_j over the responses j of the prompt. On-policy the ratio is not 1.
    """
    responses = batch.group_totals.responses
    assert responses is not None and batch.groups is not None
    if responses.old_log_probs is None:
        raise ValueError("ratio group_expectation: StepTotals.responses needs old_log_probs")
    log_q = responses.old_log_probs / responses.lengths.clamp(min=1)
    q = torch.where(responses.lengths > 0, log_q.exp(), 0.0)
    # A group in which nothing is in the loss has no expectation, and no token that would read it.
    expected = (responses.sum_by_group(q.square(), batch.groups) / responses.sum_by_group(q, batch.groups)).nan_to_num(
        nan=1.0
    )
    own = batch.log_probs.sum(1) / batch.lengths.clamp(min=1)
    return (own - expected.log()).unsqueeze(1).expand_as(batch.log_probs)


def none(batch: TokenBatch) -> Tensor:
    """1 in value, ∇log π_θ in gradient: REINFORCE."""
    return batch.log_ratio - batch.log_ratio.detach()


def _own_gradient(log_r: Tensor, log_ratio: Tensor) -> Tensor:
    """``log_r`` in value, with the gradient of each token's own ℓ."""
    return log_r.detach() + (log_ratio - log_ratio.detach())


def block(
    batch: TokenBatch,
    *,
    size: int,
    layout: BlockLayout,
    weights: BlockWeights,
    future_weight: float,
    future: Literal["backbone", "mtp_heads"],
    edges: Literal["as_published", "normalised"] = "as_published",
) -> Tensor:
    """K consecutive tokens are one action: log r_t = Σ_n β_n ℓ_{t+n}. MPO (2602.14386).

    ``sliding`` windows are t..t+K−1, ``tiled`` ones the tile ⌊(t−1)/K⌋ that holds t, ``segments`` those of
    ``batch.segments`` (sentences, steps), of unequal sizes K. β is 1/K (``uniform``), or 1−φ
    for t itself and φ/(K−1) for each other token (``future``, φ = ``future_weight``); both are renormalised where the
    response ends inside a window. ``joint`` is β = 1, the exact ratio of the block's tokens, and a shorter block is
    simply a shorter product (our reading: renormalising it would not be a ratio of probabilities).

    ``future`` says whose ratio a later token's is: the ``backbone``'s, which reads all tokens before it, or that of
    multi-token prediction heads (``mtp_heads``), which predict it from the state that predicts t, as in MPO's published
    form.

    ``edges``: each ℓ is a part of several windows, and its β in all of them add up to its coverage, which is its weight
    in the on-policy gradient. Where the response begins and ends coverage is not 1. ``normalised`` divides the gradient
    of each ℓ by its coverage and leaves the value as it is; ``as_published`` does not.
    """
    if size < 1:
        raise ValueError(f"block.size must be at least 1, got {size}")
    if not 0 <= future_weight < 1:
        raise ValueError(f"block.future_weight must be in [0, 1), got {future_weight}")
    if future == "mtp_heads" and layout != "sliding":
        raise ValueError("block.future: mtp_heads predict from each token on, so block.layout must be sliding")
    if layout == "segments" and edges == "normalised":
        raise ValueError("block.edges: normalised is for blocks of one size, not for layout: segments")
    if future == "mtp_heads" and edges == "normalised":
        raise ValueError("block.edges: normalised counts windows of the backbone's ratios, not those of mtp_heads")
    if layout == "segments":
        return _segment_mean(batch, weights, future_weight)
    own, other = _block_weights(size, weights, future_weight)
    totals = _sliding_totals if layout == "sliding" else _tiled_totals
    log_ratio = batch.log_ratio
    if edges == "normalised":
        constant = log_ratio.detach()
        covered = _coverage(batch.mask, size, layout, weights, future_weight).to(log_ratio.dtype)
        log_ratio = constant + (log_ratio - constant) / covered
    log_sum, count = totals(log_ratio, batch.mask, size)
    if future == "mtp_heads":
        log_sum = log_ratio + batch.future_log_ratio
    # The β-weighted sum over a window is other·(sum over all of it) + (own − other)·ℓ_t, and so is the sum of its β.
    weighted = other * log_sum + (own - other) * log_ratio
    if weights != "joint":
        weighted = weighted / (other * count.clamp(min=1) + (own - other))
    return weighted.to(log_ratio.dtype)


def _segment_mean(batch: TokenBatch, weights: BlockWeights, future_weight: float) -> Tensor:
    """log r_t over the segment of each token, whose number of tokens is K. ValueError without segments."""
    if batch.segments is None:
        raise ValueError("block.layout: segments needs `segments` of TokenBatch")
    row = torch.arange(len(batch.mask), device=batch.mask.device).unsqueeze(1).expand_as(batch.segments)
    _, number = torch.stack([row, batch.segments]).flatten(1).unique(dim=1, return_inverse=True)
    log_ratio = batch.log_ratio

    def total(x: Tensor) -> Tensor:
        return x.new_zeros(number.numel()).index_add(0, number, x.flatten())[number].view_as(x)

    log_sum, count = total(log_ratio), total(batch.mask.to(log_ratio.dtype))
    if weights == "joint":
        return log_sum
    if weights == "uniform":
        return log_sum / count.clamp(min=1)
    others = future_weight * (count > 1).to(log_ratio.dtype)  # the weight of all tokens but t; a token alone has all
    own, other = 1 - others, others / (count - 1).clamp(min=1)
    return own * log_ratio + other * (log_sum - log_ratio)


def _block_weights(size: int, weights: BlockWeights, future_weight: float) -> tuple[float, float]:
    """(β_0, β_n for n ≥ 1)."""
    if weights == "joint" or size == 1:
        return 1.0, 1.0
    if weights == "uniform":
        return 1 / size, 1 / size
    return 1 - future_weight, future_weight / (size - 1)


def _coverage(
    mask: Tensor, size: int, layout: Literal["sliding", "tiled"], weights: BlockWeights, future_weight: float
) -> Tensor:
    """Σ_t β_{k−t}: the β of token k, added up over all windows that contain it; 1 on padding. [batch, tokens]."""
    own, other = _block_weights(size, weights, future_weight)
    totals = _sliding_totals if layout == "sliding" else _tiled_totals
    live = mask.to(torch.float64)
    _, count = totals(live, mask, size)
    # One over what a window's β are divided by.
    scale = live if weights == "joint" else live / (other * count.clamp(min=1) + (own - other))
    if layout == "sliding":  # The windows that contain k begin at k−size+1..k: a window that looks back.
        total = F.pad(scale, (size, 0)).cumsum(1)
        over_windows = total[:, size:] - total[:, :-size]
    else:
        over_windows, _ = totals(scale, mask, size)
    return torch.where(mask, other * over_windows + (own - other) * scale, 1.0)


def _sliding_totals(log_ratio: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Sum of ℓ and number of response tokens over t..t+size−1, in float64; padding adds 0.

    As differences of running sums, so that the cost does not grow with ``size``; in double precision, so that a long
    response's running sum costs no digits of a short window's.
    """
    running = [F.pad(x, (1, size - 1)).cumsum(1, dtype=torch.float64) for x in (log_ratio, mask)]
    log_sum, count = (x[:, size:] - x[:, :-size] for x in running)
    return log_sum, count


def _tiled_totals(log_ratio: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The same over the tile of each token, counted from the first response token."""
    tile = (mask.cumsum(1) - 1).clamp(min=0) // size
    log_sum, count = (
        torch.zeros_like(x).scatter_add(1, tile, x).gather(1, tile) for x in (log_ratio, mask.to(log_ratio.dtype))
    )
    return log_sum, count
