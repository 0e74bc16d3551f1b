"""Segments of responses: sentences, lines or steps, which end with certain texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def segment_ids(sequences: Sequences, tokenizer: PreTrainedTokenizerBase, ends: Sequence[str]) -> Tensor:
    """The number of each response token's segment, from 0. A token with one of ``ends`` in it ends its segment.

    [batch, tokens], integers; numbers on padding mean nothing.
    """
    known, index = sequences.ids.unique(return_inverse=True)
    texts = [tokenizer.decode([token]) for token in known.tolist()]
    is_end = torch.tensor([any(end in text for end in ends) for text in texts], device=index.device)[index]
    is_end &= sequences.mask.bool()
    return is_end.cumsum(1) - is_end.long()
