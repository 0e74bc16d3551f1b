"""Token scores: log-probabilities and entropies of responses under a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from .mtp_heads import MTPHeads
from .packing import packed_hidden
from .precision import forward_precision
from .sequences import Sequences
from .unembedding import log_probs_and_entropy

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
