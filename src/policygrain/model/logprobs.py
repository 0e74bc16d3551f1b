"""Log-probabilities and entropies from hidden states, without materialising all logits at once.

The logits of 8,192 tokens over a vocabulary of 151,936 take 5 GB in float32, and log-softmax, entropy and their
gradients need several tensors of that size. Here they are computed in blocks of tokens, whose logits the backward pass
computes again, which makes four matrix products instead of three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Up to this vocabulary size blocks save nothing: logits are no larger than the layers' activations, and three products
# are faster than four. The choice depends on the model alone, so it is the same for every division into micro-batches.
PLAIN_VOCABULARY = 4096
BLOCK = {"cpu": 256, "cuda": 2048}  # tokens


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
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`log_probs_and_entropy` in blocks of tokens. Results are float64 for float64 hidden states."""
    compute = compute or hidden.dtype
    # Tensor cores sum products of half precision in float32; elsewhere the rounded factors are cast first.
    product = compute if hidden.is_cuda else torch.promote_types(compute, torch.float32)
    how = temperature, compute, product, block or BLOCK.get(hidden.device.type, BLOCK["cuda"])
    pair: tuple[Tensor, Tensor] = _Blockwise.apply(hidden, weight, bias, targets, entropy_gradient, how)
    return pair


class _Blockwise(torch.autograd.Function):
    """With p = softmax(z), z = (W h + b) / T: ∂ log p_y / ∂z = 1_y − p and ∂H / ∂z = −p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, entropy_gradient: bool, how: Any
    ) -> tuple[Tensor, Tensor]:
        temperature, compute, product, block = how
        factor, scores = weight.to(compute).to(product).T, _elementwise(_scores, hidden.device.type)
        blocks = [
            scores(_logits(h.to(compute).to(product), factor, bias), y, temperature)
            for h, y in zip(hidden.split(block), targets.split(block), strict=True)
        ]
        chosen, entropy, log_total = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets, log_total, entropy)
        ctx.how = how
        ctx.set_materialize_grads(False)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_total, entropy = ctx.saved_tensors
        temperature, compute, product, block = ctx.how
        wide, by_logits = log_total.dtype, _elementwise(_by_logits, hidden.device.type)
        to_hidden, to_weight, to_bias = (
            torch.zeros_like(x, dtype=wide) if needed else None
            for x, needed in zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        )
        factor = weight.to(compute).to(product)
        g, k = (torch.zeros_like(log_total) if x is None else x for x in (by_log_prob, by_entropy))
        for start in range(0, len(hidden), block):
            t = slice(start, start + block)
            h = hidden[t].to(compute).to(product)
            z = _logits(h, factor.T, bias)
            by_z = by_logits(z, targets[t], log_total[t], entropy[t], g[t], k[t], temperature, product)
            if to_hidden is not None:
                _add_product(to_hidden[t], by_z, factor)
            if to_weight is not None:
                _add_product(to_weight, by_z.T, h)
            if to_bias is not None:
                to_bias += by_z.sum(0, dtype=wide)
        gradients = ((to_hidden, hidden), (to_weight, weight), (to_bias, bias))
        return *(None if x is None else x.to(like.dtype) for x, like in gradients), None, None, None


def _scores(z: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """log p of the targets, the entropy, and log Σ e^z, of logits z [tokens, vocabulary]. [tokens] each."""
    z = z / temperature
    log_total = z.logsumexp(1, keepdim=True)
    log_p = z - log_total
    return log_p.gather(1, targets.unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(1), log_total.squeeze(1)


def _by_logits(
    z: Tensor,
    targets: Tensor,
    log_total: Tensor,
    entropy: Tensor,
    g: Tensor,
    k: Tensor,
    temperature: float,
    precision: torch.dtype,
) -> Tensor:
    """The gradient by logits z of Σ g log p_y + k H. [tokens, vocabulary], in ``precision``."""
    log_total, entropy, g, k = (x.unsqueeze(1) for x in (log_total, entropy, g, k))
    log_p = z / temperature - log_total
    of_target = torch.where(torch.arange(z.shape[1], device=z.device) == targets.unsqueeze(1), g, 0.0)
    return ((of_target - log_p.exp() * (g + k * (log_p + entropy))) / temperature).to(precision)


@cache
def _elementwise(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """``function``, compiled on a GPU, where each of its operations would read and write all logits."""
    return torch.compile(function) if device == "cuda" else function


def _logits(hidden: Tensor, factor: Tensor, bias: Tensor | None) -> Tensor:
    """[tokens, vocabulary], in float32 at least."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    z: Tensor = hidden @ factor if hidden.dtype == wide else torch.mm(hidden, factor, out_dtype=wide)
    return z if bias is None else z.add_(bias)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without a temporary of that size."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
