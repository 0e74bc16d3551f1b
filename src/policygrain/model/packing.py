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
from .attention import Spans, Varlen, packed_positions, to_device
from .precision import compute_dtype
from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "policygrain_packed"


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward pass. The last token of a response is only predicted, so it is not in the row."""

    ids: Tensor  # [1, row]
    positions: Tensor  # [1, row]: position ids, counted from the beginning of each prompt
    predicts: Tensor  # [response tokens]: index in the row of the hidden state that predicts each one
    attention: Spans | Varlen

    @classmethod
    def of(cls, sequences: Sequences, place: torch.device, kind: type[Spans] | type[Varlen] = Spans) -> Packed:
        """Pack ``sequences`` into one row on the device ``place``."""
        prompt_mask, response_mask, prompt_of = sequences.prompt_mask, sequences.mask[:, 1:], sequences.prompt_of
        prompt_lengths, response_lengths = prompt_mask.sum(1), response_mask.sum(1)
        ids = torch.cat([sequences.prompts[prompt_mask], sequences.ids[:, :-1][response_mask]])
        prompts, prompt_valid = packed_positions(prompt_lengths, 0)
        responses, response_valid = packed_positions(response_lengths, int(prompt_lengths.sum()))
        step, response_step = (torch.arange(x.shape[1]) for x in (prompts, responses))
        positions = [
            step.expand_as(prompts)[prompt_valid],
            (prompt_lengths[prompt_of].unsqueeze(1) + response_step)[response_valid],
        ]
        # The first response token is predicted by the prompt's last token, each other one by the one before it.
        last = prompts.gather(1, prompt_lengths.unsqueeze(1) - 1)[prompt_of]
        predicts = torch.cat([last, responses], 1)[sequences.mask]
        inputs = to_device((ids.unsqueeze(0), torch.cat(positions).unsqueeze(0), predicts), place)
        return cls(inputs[0], inputs[1], inputs[2], kind.of(prompt_lengths, response_lengths, prompt_of, place))


def packed_hidden(model: PreTrainedModel, sequences: Sequences) -> Tensor:
    """The final-layer hidden state that predicts each response token, [response tokens, hidden]."""
    place, config = model.device, model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    packed = Packed.of(sequences, place, Varlen if Varlen.runs(place, compute_dtype(model), size) else Spans)
    with _packed(model):
        out = model.base_model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)
    hidden: Tensor = out.last_hidden_state[0]
    # Unlike indexing, whose backward pass sorts the indices on a GPU.
    return hidden.index_select(0, packed.predicts)


@contextmanager
def _packed(model: PreTrainedModel) -> Iterator[None]:
    """Context in which the model's layers use packed attention; they look its name up in the configuration."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def recompute_contexts(model: PreTrainedModel) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """`context_fn` of torch's activation checkpointing, once ``model`` is bound.

    Layers are recomputed in the backward pass, after `packed_hidden` has returned, and must use packed attention again.
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
