"""Log-probabilities and entropies from hidden states, without materialising all logits at once.

The logits of 8,192 tokens over a vocabulary of 151,936 take 5 GB in float32, and log-softmax, entropy and their
gradients need several tensors of that size. Here they are computed in blocks of tokens × vocabulary: the forward pass
keeps a running maximum and sums per token (the online softmax of arXiv 1805.02867, with one more sum for the entropy),
the backward pass computes each block of logits again, which makes four matrix products instead of three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Up to this vocabulary size blocks save nothing: logits are no larger than the layers' activations, and three products
# are faster than four. The choice depends on the model alone, so it is the same for every division into micro-batches.
PLAIN_VOCABULARY = 4096
# Block size, tokens × vocabulary. On a CPU 8 MiB in float32 fits into the cache, and larger products are no faster. On
# a GPU blocks have the whole vocabulary, so that products are large and compiled kernels read each logit once.
BLOCKS = {"cpu": (1024, 2048), "cuda": (2048, 2**20)}


def log_probs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    entropy_gradient: bool = True,
    compute: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """log π of ``targets`` and the entropy over the vocabulary in nats, both [tokens] and float32.

    ``hidden`` [tokens, hidden], ``weight`` [vocabulary, hidden], ``bias`` [vocabulary], ``targets`` [tokens].
    Hidden states, weight and bias get gradients. ``compute`` is the precision of the factors of products (None: that of
    ``hidden``); products are summed in float32. A sharded weight must be gathered before this is called.
    """
    if len(weight) > PLAIN_VOCABULARY:
        chosen, entropy = blockwise(hidden, weight, bias, targets, temperature, entropy_gradient, compute)
        return chosen.float(), entropy.float()
    log_p = torch.log_softmax(F.linear(hidden, weight, bias).float() / temperature, dim=-1)
    chosen = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy


def blockwise(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    entropy_gradient: bool = True,
    compute: torch.dtype | None = None,
    block: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """`log_probs_and_entropy` in blocks of tokens × vocabulary. Results are float64 for float64 hidden states."""
    how = temperature, compute or hidden.dtype, block or BLOCKS.get(hidden.device.type, BLOCKS["cuda"])
    pair: tuple[Tensor, Tensor] = _Blockwise.apply(hidden, weight, bias, targets, entropy_gradient, how)
    return pair


class _Blockwise(torch.autograd.Function):
    """With p = softmax(z), z = (W h + b) / T: ∂ log p_y / ∂z = 1_y − p and ∂H / ∂z = −p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, entropy_gradient: bool, how: Any
    ) -> tuple[Tensor, Tensor]:
        temperature, compute, block = how
        wide = torch.promote_types(hidden.dtype, torch.float32)
        fold = _elementwise(_fold, hidden.device.type)
        # Per token: the largest logit so far, Σ e^(z − largest), Σ e^(z − largest) (z − largest), the target's logit.
        sums = hidden.new_zeros((4, len(hidden)), dtype=wide)
        sums[0] = torch.finfo(wide).min
        for v in _slices(len(weight), block[1]):
            factor, offset = weight[v].to(compute).T, None if bias is None else bias[v]
            for t in _slices(len(hidden), block[0]):
                z = _logits(hidden[t].to(compute), factor, offset, wide)
                sums[:, t] = fold(z, *_column(targets[t], v), sums[:, t], temperature)
        largest, total, tilt, chosen = sums
        log_total = total.log()
        entropy = log_total - tilt / total
        ctx.save_for_backward(hidden, weight, bias, targets, largest + log_total, entropy)
        ctx.how = how
        ctx.set_materialize_grads(False)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen - largest - log_total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_total, entropy = ctx.saved_tensors
        temperature, compute, block = ctx.how
        wide, by_logits = log_total.dtype, _elementwise(_by_logits, hidden.device.type)
        precision = compute if hidden.is_cuda else wide  # of the gradient by logits, a factor of products
        to_hidden, to_weight, to_bias = (
            torch.zeros_like(x, dtype=wide) if needed else None
            for x, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        g = torch.zeros_like(log_total) if by_log_prob is None else by_log_prob
        for v in _slices(len(weight), block[1]):
            factor, offset = weight[v].to(compute), None if bias is None else bias[v]
            for t in _slices(len(hidden), block[0]):
                h = hidden[t].to(compute)
                z, k = _logits(h, factor.T, offset, wide), None if by_entropy is None else by_entropy[t]
                of_tokens = *_column(targets[t], v), log_total[t], entropy[t], g[t], k
                by_z = by_logits(z, *of_tokens, temperature, precision)
                if to_hidden is not None:
                    _add_product(to_hidden[t], by_z, factor)
                if to_weight is not None:
                    _add_product(to_weight[v], by_z.T, h)
                if to_bias is not None:
                    to_bias[v] += by_z.sum(0, dtype=wide)
        gradients = ((to_hidden, hidden), (to_weight, weight), (to_bias, bias))
        return *(None if x is None else x.to(like.dtype) for x, like in gradients), None, None, None


def _fold(z: Tensor, column: Tensor, inside: Tensor, sums: Tensor, temperature: float) -> Tensor:
    """The sums of the forward pass after another block of logits z [tokens, vocabulary]. [4, tokens]."""
    z = z if temperature == 1 else z / temperature
    largest, total, tilt, chosen = sums
    chosen = torch.where(inside, z.gather(1, column).squeeze(1), chosen)
    new = torch.maximum(largest, z.amax(1))
    fall, z = largest - new, z - new.unsqueeze(1)
    p = z.exp()
    tilt = fall.exp() * (tilt + fall * total) + (p * z).sum(1)
    return torch.stack([new, fall.exp() * total + p.sum(1), tilt, chosen])


def _by_logits(
    z: Tensor,
    column: Tensor,
    inside: Tensor,
    log_total: Tensor,
    entropy: Tensor,
    g: Tensor,
    k: Tensor | None,
    temperature: float,
    precision: torch.dtype,
) -> Tensor:
    """The gradient by logits z of Σ g log p_y + k H. [tokens, vocabulary], in ``precision``."""
    g, k = g / temperature, None if k is None else k / temperature
    log_p = (z if temperature == 1 else z / temperature) - log_total.unsqueeze(1)
    by_p = -g.unsqueeze(1) if k is None else -(g + k * entropy).unsqueeze(1) - k.unsqueeze(1) * log_p
    by_z, of_target = log_p.exp() * by_p, torch.where(inside, g, 0.0).unsqueeze(1)
    if not z.is_cuda:
        return by_z.scatter_add_(1, column, of_target).to(precision)
    # The compiler does not fuse a scatter where sums must be deterministic.
    return (by_z + torch.where(torch.arange(z.shape[1], device=z.device) == column, of_target, 0.0)).to(precision)


@cache
def _elementwise(function: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """``function``, compiled on a GPU, where each of its operations would read and write all logits."""
    return torch.compile(function) if device == "cuda" else function


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _column(targets: Tensor, v: slice) -> tuple[Tensor, Tensor]:
    """Each target's column in the vocabulary block ``v``, [tokens, 1], and whether it is in the block, [tokens]."""
    inside = (targets >= v.start) & (targets < v.stop)
    return torch.where(inside, targets - v.start, 0).unsqueeze(1), inside


def _logits(hidden: Tensor, factor: Tensor, bias: Tensor | None, wide: torch.dtype) -> Tensor:
    """Tensor cores sum half-precision factors in float32; elsewhere the factors are cast first."""
    half = hidden.is_cuda and hidden.dtype != wide
    z: Tensor = torch.mm(hidden, factor, out_dtype=wide) if half else hidden.to(wide) @ factor.to(wide)
    return z if bias is None else z.add_(bias)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without a temporary of that size; factors as in `_logits`."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
