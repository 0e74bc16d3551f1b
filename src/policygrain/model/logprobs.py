"""Token scores: log-probabilities and entropies of responses under a model, without materialising all logits at once.

The logits of 8,192 tokens over a vocabulary of 151,936 take 5 GB in float32, and log-softmax, entropy and their
gradients need several tensors of that size. Here they are computed in blocks of tokens × vocabulary: the forward pass
keeps a running maximum and sums per token (the online softmax of arXiv 1805.02867, with one more sum for the entropy),
the backward pass computes each block of logits again, which makes four matrix products instead of three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import UserError
from .packing import packed_hidden
from .precision import forward_precision
from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .mtp_heads import MTPHeads

# Up to this vocabulary size blocks save nothing: logits are no larger than the layers' activations, and three products
# are faster than four. The choice depends on the model alone, so it is the same for every division into micro-batches.
PLAIN_VOCABULARY = 4096
# Block size, tokens × vocabulary. On a CPU 8 MiB in float32 fits into the cache, and larger products are no faster.
# On a GPU blocks are larger, so that kernel launches do not dominate (estimated, not measured).
BLOCKS = {"cpu": (1024, 2048), "cuda": (4096, 8192)}


class TokenScores(NamedTuple):
    """Scores of response tokens under the distribution that is sampled from, softmax of logits / temperature.

    All [batch, tokens], float32, 0 on padding and on tokens of tools.
    """

    log_probs: Tensor  # log π of each response token
    entropy: Tensor  # over the full vocabulary, in nats
    future: Tensor | None  # Σ_n log π_n(o_{t+n} | s_t) over prediction heads; None without them
    # Cross-entropy of the heads summed over tokens, a scalar that only trains the heads; None without gradient.
    future_loss: Tensor | None


def score_tokens(
    model: PreTrainedModel,
    sequences: Sequences,
    temperature: float,
    entropy_gradient: bool = True,
    heads: MTPHeads | None = None,
) -> TokenScores:
    """Score the response tokens of ``sequences`` in one forward pass over the packed row.

    UserError if the model's output layer is not a plain linear one.
    """
    with forward_precision(model):
        hidden = packed_hidden(model, sequences)
    unembed = model.get_output_embeddings()
    if not isinstance(unembed, torch.nn.Linear):
        raise UserError(
            f"model: its output layer is a {type(unembed).__name__}; only a plain linear one can be trained."
        )
    weight, bias = unembed.weight, unembed.bias
    targets = sequences.ids[sequences.mask]
    scores = log_probs_and_entropy(hidden, weight, bias, targets, temperature, entropy_gradient)
    log_probs, entropy = (_to_padded(x, sequences.mask) for x in scores)
    if heads is None:
        return TokenScores(log_probs, entropy, None, None)
    future = heads.log_probs(hidden, weight, bias, sequences, temperature)
    future_loss = None
    if torch.is_grad_enabled():
        constant = None if bias is None else bias.detach()
        future_loss = heads.loss(hidden.detach(), weight.detach(), constant, sequences)
    return TokenScores(log_probs, entropy, _to_padded(future, sequences.mask), future_loss)


def _to_padded(values: Tensor, mask: Tensor) -> Tensor:
    """[response tokens] → [batch, tokens], 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def log_probs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    entropy_gradient: bool = True,
) -> tuple[Tensor, Tensor]:
    """log π of ``targets`` and the entropy over the vocabulary in nats, both [tokens] and float32.

    ``hidden`` [tokens, hidden], ``weight`` [vocabulary, hidden], ``bias`` [vocabulary], ``targets`` [tokens].
    Hidden states, weight and bias get gradients. A sharded weight must be gathered before this is called.
    """
    if len(weight) > PLAIN_VOCABULARY:
        chosen, entropy = blockwise(hidden, weight, bias, targets, temperature, entropy_gradient)
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
    block: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """`log_probs_and_entropy` in blocks of tokens × vocabulary. Results are float64 for float64 hidden states."""
    block = block or BLOCKS.get(hidden.device.type, BLOCKS["cuda"])
    pair: tuple[Tensor, Tensor] = _Blockwise.apply(hidden, weight, bias, targets, temperature, entropy_gradient, block)
    return pair


class _Blockwise(torch.autograd.Function):
    """With p = softmax(z), z = (W h + b) / T: ∂ log p_y / ∂z = 1_y − p and ∂H / ∂z = −p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool,
        block: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        # Per token: the largest logit so far, Σ e^(z − largest), Σ e^(z − largest) (z − largest), the target's logit.
        largest = hidden.new_full((len(hidden),), torch.finfo(wide).min, dtype=wide)
        total, tilt, chosen = (torch.zeros_like(largest) for _ in range(3))
        scratch = _scratch(hidden, weight, block, wide)
        for v in _slices(len(weight), block[1]):
            for t in _slices(len(hidden), block[0]):
                z = _logits(hidden[t], weight[v], None if bias is None else bias[v], temperature, scratch[0])
                column, inside = _column(targets[t], v)
                chosen[t] = torch.where(inside, z.gather(1, column).squeeze(1), chosen[t])
                new = torch.maximum(largest[t], z.amax(1))
                fall = largest[t] - new
                p = _exp(z.sub_(new.unsqueeze(1)), scratch[1])
                tilt[t] = fall.exp() * (tilt[t] + fall * total[t])
                total[t] = fall.exp() * total[t] + p.sum(1)
                tilt[t] += p.mul_(z).sum(1)
                largest[t] = new
        log_total = total.log()
        entropy = log_total - tilt / total
        ctx.save_for_backward(hidden, weight, bias, targets, largest + log_total, entropy)
        ctx.temperature, ctx.block = temperature, block
        ctx.set_materialize_grads(False)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen - largest - log_total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy = ctx.saved_tensors
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        wide = log_z.dtype
        g = torch.zeros_like(log_z) if by_log_prob is None else by_log_prob / ctx.temperature
        k = None if by_entropy is None else by_entropy / ctx.temperature
        constant = g if k is None else g + k * entropy
        grad_hidden = torch.zeros_like(hidden, dtype=wide) if to_hidden else None
        grad_weight = torch.zeros_like(weight) if to_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if to_bias else None
        scratch = _scratch(hidden, weight, ctx.block, wide)
        for v in _slices(len(weight), ctx.block[1]):
            # Summed over tokens in full precision (in place if the weight has that precision) and rounded once.
            rows = None if grad_weight is None else grad_weight[v].to(wide)
            for t in _slices(len(hidden), ctx.block[0]):
                z = _logits(hidden[t], weight[v], None if bias is None else bias[v], ctx.temperature, scratch[0])
                log_p = z.sub_(log_z[t].unsqueeze(1))
                p = _exp(log_p, scratch[1])
                if k is None:
                    by_z = p.mul_(-constant[t].unsqueeze(1))
                else:
                    by_z = log_p.mul_(-k[t].unsqueeze(1)).sub_(constant[t].unsqueeze(1)).mul_(p)
                column, inside = _column(targets[t], v)
                by_z.scatter_add_(1, column, torch.where(inside, g[t], 0.0).unsqueeze(1))
                if grad_hidden is not None:
                    _add_product(grad_hidden[t], by_z, weight[v])
                if rows is not None:
                    _add_product(rows, by_z.T, hidden[t])
                if grad_bias is not None:
                    grad_bias[v] += by_z.sum(0)
            if grad_weight is not None and rows is not None and grad_weight.dtype != wide:
                grad_weight[v] = rows
        if grad_hidden is not None:
            grad_hidden = grad_hidden.to(hidden.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, *[None] * 4


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _column(targets: Tensor, v: slice) -> tuple[Tensor, Tensor]:
    """Each target's column in the vocabulary block ``v``, [tokens, 1], and whether it is in the block, [tokens]."""
    inside = (targets >= v.start) & (targets < v.stop)
    return torch.where(inside, targets - v.start, 0).unsqueeze(1), inside


def _scratch(hidden: Tensor, weight: Tensor, block: tuple[int, int], wide: torch.dtype) -> Tensor:
    """Memory for two blocks, [2, elements], reused by all blocks: allocation would cost more than the arithmetic."""
    return hidden.new_empty((2, min(block[0], len(hidden)) * min(block[1], len(weight))), dtype=wide)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, memory: Tensor) -> Tensor:
    """Logits / temperature, in the precision of ``memory``; in ``memory`` itself if the weight has that precision."""
    if weight.dtype == memory.dtype:
        z = torch.mm(hidden, weight.T, out=memory[: len(hidden) * len(weight)].view(len(hidden), len(weight)))
    else:
        z = _product(hidden, weight.T, memory.dtype)
    if bias is not None:
        z += bias
    return z if temperature == 1 else z.div_(temperature)


def _exp(x: Tensor, memory: Tensor) -> Tensor:
    return torch.exp(x, out=memory[: x.numel()].view_as(x))


def _product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """a b, accumulated in ``wide``: tensor cores take half-precision factors, elsewhere the factors are cast first."""
    if b.is_cuda and b.dtype != wide:
        return torch.mm(a.to(b.dtype), b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without a temporary of that size if the precisions agree."""
    if b.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += _product(a, b, total.dtype)
