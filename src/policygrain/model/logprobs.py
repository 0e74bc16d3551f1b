"""Log-probabilities and entropies from hidden states, without materialising all logits at once.

The logits of 8,192 tokens over a vocabulary of 151,936 take 5 GB in float32, and log-softmax, entropy and their
gradients need several tensors of that size. Here they are computed in blocks of tokens, whose logits the backward pass
computes again, which makes four matrix products instead of three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

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
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log π of ``targets`` and the entropy over the vocabulary in nats, both [tokens] and float32.

    ``hidden`` [tokens, hidden], ``weight`` [vocabulary, hidden], ``bias`` [vocabulary], ``targets`` [tokens].
    Hidden states, weight and bias get gradients. ``compute`` is the precision of the factors of products (None: that of
    ``hidden``); products are summed in float32. A sharded weight must be gathered before this is called. In blocks of
    ``block`` tokens (None: as the vocabulary needs) results of float64 hidden states are float64.
    """
    if block is None and len(weight) <= PLAIN_VOCABULARY:
        return _of_logits(F.linear(hidden, weight, bias).float(), targets, temperature, entropy_gradient)
    of_logits, compute = _of_logits_on(hidden.device.type), compute or hidden.dtype

    def of_block(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        z = _Product.apply(hidden, weight, compute)
        return of_logits(z if bias is None else z + bias, targets, temperature, entropy_gradient)

    size = block or BLOCK.get(hidden.device.type, BLOCK["cuda"])
    recomputed = partial(checkpoint, of_block, use_reentrant=False, preserve_rng_state=False)
    parts = [recomputed(h, y) for h, y in zip(hidden.split(size), targets.split(size), strict=True)]
    chosen, entropy = (torch.cat(x) for x in zip(*parts, strict=True))
    return chosen, entropy


def _of_logits(z: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """log p of the targets and the entropy, [tokens], from logits [tokens, vocabulary]."""
    log_p = torch.log_softmax(z / temperature, dim=-1)
    if z.is_cuda:  # the compiler does not fuse the scatter that is the backward pass of a gather
        is_target = torch.arange(z.shape[1], device=z.device) == targets.unsqueeze(1)
        chosen = torch.where(is_target, log_p, 0.0).sum(-1)
    else:
        chosen = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    of_entropy = log_p if entropy_gradient else log_p.detach()
    return chosen, -(of_entropy.exp() * of_entropy).sum(-1)


@cache
def _of_logits_on(device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`_of_logits`, compiled on a GPU, where each of its operations would read and write all logits."""
    return torch.compile(_of_logits) if device == "cuda" else _of_logits


class _Product(torch.autograd.Function):
    """W h for each row h of ``hidden``, of factors in the precision ``compute``, summed in float32 at least."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, compute: torch.dtype) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.compute = compute
        return _product(hidden, weight.T, compute)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_z: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        of_hidden, of_weight, _ = ctx.needs_input_grad
        to_hidden = _product(by_z, weight, ctx.compute).to(hidden.dtype) if of_hidden else None
        to_weight = _product(by_z.T, hidden, ctx.compute).to(weight.dtype) if of_weight else None
        return to_hidden, to_weight, None


def _product(a: Tensor, b: Tensor, compute: torch.dtype) -> Tensor:
    """Tensor cores sum products of half precision in float32; elsewhere the rounded factors are cast first."""
    a, b, wide = a.to(compute), b.to(compute), torch.promote_types(compute, torch.float32)
    if a.is_cuda and compute != wide:
        return torch.mm(a, b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)
