"""Log-probabilities and entropies of responses under a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .future_heads import FutureHeads
from .packing import packed_hidden
from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Reading(NamedTuple):
    """What a model makes of responses, under the distribution that they were sampled from, temperature included.

    All [batch, tokens], float32, 0 on padding.
    """

    log_probs: Tensor  # log π of each response token
    entropy: Tensor  # over the full vocabulary, in nats
    future: Tensor | None  # Σ_n log π_n(o_{t+n} | s_t) over prediction heads; None without them
    # The heads' own cross-entropy summed over tokens, a scalar that trains nothing else; None without gradient.
    future_loss: Tensor | None


def read(
    model: PreTrainedModel,
    sequences: Sequences,
    temperature: float,
    entropy_gradient: bool = True,
    heads: FutureHeads | None = None,
) -> Reading:
    """Read ``sequences``: prompts once, no padding."""
    hidden = packed_hidden(model, sequences)
    unembed = model.get_output_embeddings()
    log_p = torch.log_softmax(unembed(hidden).float() / temperature, dim=-1)
    chosen = log_p.gather(1, sequences.ids[sequences.mask].unsqueeze(1)).squeeze(1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    log_probs, spread_entropy = (_spread(x, sequences.mask) for x in (chosen, entropy))
    if heads is None:
        return Reading(log_probs, spread_entropy, None, None)
    future = heads.log_probs(hidden, unembed, sequences, temperature)
    future_loss = None
    if torch.is_grad_enabled():
        weight, bias = unembed.weight.detach(), None if unembed.bias is None else unembed.bias.detach()
        future_loss = heads.loss(hidden.detach(), lambda x: F.linear(x, weight, bias), sequences)
    return Reading(log_probs, spread_entropy, _spread(future, sequences.mask), future_loss)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """[response tokens] → [batch, tokens]."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
