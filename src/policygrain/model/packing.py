"""Sequence packing: a forward pass over prompts and responses without padding tokens.

All prompts, each once, and then all responses are concatenated into one row. Only attention depends on the sequence
boundaries: queries of a response attend to the keys of its prompt and to its own. The gradient of a shared prompt
is the sum over the responses that read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from ..errors import UserError
from .attention import Attention, Flex, Spans, places
from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "policygrain_packed"


@dataclass(frozen=True)
class Packed:
    """One forward pass. A response's last token is only predicted and never read, so it is not in the row."""

    ids: Tensor  # [1, row]
    positions: Tensor  # [1, row]
    predicts: Tensor  # [response tokens]: the place that predicts each response token
    attention: Attention

    @classmethod
    def of(cls, sequences: Sequences) -> Packed:
        """The pack of some sequences."""
        prompt_mask, read, owner = sequences.prompt_mask, sequences.mask[:, 1:], sequences.prompt_of
        prompt_lengths, read_lengths = prompt_mask.sum(1), read.sum(1)
        ids = torch.cat([sequences.prompts[prompt_mask], sequences.ids[:, :-1][read]])
        prompts, prompt_real = places(prompt_lengths, 0)
        queries, query_real = places(read_lengths, int(prompt_lengths.sum()))
        step, query_step = (torch.arange(x.shape[1], device=ids.device) for x in (prompts, queries))
        # The first response token is predicted by the prompt's last token, each other one by the one before it.
        last = prompts.gather(1, prompt_lengths.unsqueeze(1) - 1)[owner]
        return cls(
            ids=ids.unsqueeze(0),
            positions=torch.cat(
                [step.expand_as(prompts)[prompt_real], (prompt_lengths[owner].unsqueeze(1) + query_step)[query_real]]
            ).unsqueeze(0),
            predicts=torch.cat([last, queries], 1)[sequences.mask],
            attention=(Flex if ids.is_cuda else Spans).of(prompt_lengths, read_lengths, owner),
        )


def packed_hidden(model: PreTrainedModel, sequences: Sequences) -> Tensor:
    """The last hidden state before each response token: what predicts it. [response tokens, hidden]."""
    packed = Packed.of(sequences)
    with _packed(model):
        out = model.base_model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)
    hidden: Tensor = out.last_hidden_state[0]
    return hidden[packed.predicts]


@contextmanager
def _packed(model: PreTrainedModel) -> Iterator[None]:
    """The model's layers ask its configuration, at each call, which attention to use."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def recompute_contexts(model: PreTrainedModel) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """`context_fn` of torch's activation checkpointing, with ``model`` bound: what is computed again in the backward
    pass is computed after `packed_hidden` has returned, and must meet the same attention.
    """
    return nullcontext(), _packed(model)


def _packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    packed: Packed,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row, [1, heads, row, size] → [1, row, heads, size]."""
    if sliding_window is not None:
        raise UserError("model: layers of sliding-window attention cannot be trained yet.")
    return packed.attention(query, key, value, scaling), None


AttentionInterface.register(NAME, _packed_attention)
