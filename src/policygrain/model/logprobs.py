"""Log-probabilities and entropies of responses under a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .packing import packed_logits
from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def log_probs_and_entropy(
    model: PreTrainedModel, sequences: Sequences, temperature: float, entropy_gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """Of each response token: log π and the full-vocabulary entropy in nats, both [batch, tokens], float32.

    Both are of the distribution sampled from, temperature included, and 0 on padding.
    """
    log_p = torch.log_softmax(packed_logits(model, sequences).float() / temperature, dim=-1)
    chosen = log_p.gather(1, sequences.ids[sequences.mask].unsqueeze(1)).squeeze(1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return _spread(chosen, sequences.mask), _spread(entropy, sequences.mask)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """[response tokens] → [batch, tokens]."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
