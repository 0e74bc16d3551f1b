"""Reading responses without padding: what a transformer layer does to each token apart is done to real tokens alone.

All prompts, each once, and then all responses lie behind one another in a single row. Only attention, which needs to
know whose tokens are whose, spreads them out: queries of a response meet the keys of its prompt and its own. The
gradient of a shared prompt is the sum over the responses that read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from ..errors import UserError
from .sequences import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "policygrain_packed"


class Span(NamedTuple):
    """Rows of like length whose attention is computed together. Places are in the packed row."""

    queries: Tensor  # [rows, tokens], padded on the right
    keys: Tensor  # [rows, keys]: the tokens that they may look at
    visible: Tensor  # [rows, 1, tokens, keys]
    real: Tensor  # [rows, tokens]: which queries are no padding


@dataclass(frozen=True)
class Packed:
    """One forward pass. A response's last token is only predicted and never read, so it is not in the row."""

    ids: Tensor  # [1, row]
    positions: Tensor  # [1, row]
    predicts: Tensor  # [response tokens]: the place that predicts each response token
    spans: list[Span]
    back: Tensor  # [row]: where in the spans' outputs, padding left out, each place is

    @classmethod
    def of(cls, sequences: Sequences) -> Packed:
        """The pack of some sequences."""
        prompt_mask, read, owner = sequences.prompt_mask, sequences.mask[:, 1:], sequences.prompt_of
        prompt_lengths, read_lengths = prompt_mask.sum(1), read.sum(1)
        ids = torch.cat([sequences.prompts[prompt_mask], sequences.ids[:, :-1][read]])
        prompts, prompt_real = _places(prompt_lengths, 0)
        queries, query_real = _places(read_lengths, int(prompt_lengths.sum()))
        step, query_step = (torch.arange(x.shape[1], device=ids.device) for x in (prompts, queries))
        # The first response token is predicted by the prompt's last token, each other one by the one before it.
        last = prompts.gather(1, prompt_lengths.unsqueeze(1) - 1)[owner]
        spans = [Span(prompts, prompts, (step.unsqueeze(1) >= step).expand(len(prompts), 1, -1, -1), prompt_real)]
        for rows in _alike(read_lengths):
            width = int(read_lengths[rows].max())
            own, ask = queries[rows, :width], query_step[:width]
            earlier = (ask.unsqueeze(1) >= ask).expand(len(rows), 1, -1, -1)
            prompt = prompt_real[owner[rows]][:, None, None].expand(-1, 1, width, -1)
            keys = torch.cat([prompts[owner[rows]], own], 1)
            spans.append(Span(own, keys, torch.cat([prompt, earlier], 3), query_real[rows, :width]))
        return cls(
            ids=ids.unsqueeze(0),
            positions=torch.cat(
                [step.expand_as(prompts)[prompt_real], (prompt_lengths[owner].unsqueeze(1) + query_step)[query_real]]
            ).unsqueeze(0),
            predicts=torch.cat([last, queries], 1)[sequences.mask],
            spans=spans,
            back=torch.cat([span.queries[span.real] for span in spans]).argsort(),
        )


def _places(lengths: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Consecutive places from ``start`` on, a row per length, padded on the right; and which of them are no padding."""
    column = torch.arange(int(lengths.max()), device=lengths.device)
    real = column < lengths.unsqueeze(1)
    first = start + lengths.cumsum(0) - lengths
    return torch.where(real, first.unsqueeze(1) + column, 0), real


def _alike(lengths: Tensor) -> list[Tensor]:
    """Rows that have a length, by length, cut so that those of one span are within a half of each other."""
    order = lengths.argsort(stable=True)
    values = lengths[order].tolist()
    cuts, shortest = [values.count(0)], 0
    for row, value in enumerate(values):
        if value > 1.5 * shortest + 8:
            shortest = value
            if row > cuts[-1]:
                cuts.append(row)
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(values)], strict=True) if b > a]


def packed_hidden(model: PreTrainedModel, sequences: Sequences) -> Tensor:
    """The last hidden state before each response token: what predicts it. [response tokens, hidden]."""
    packed = Packed.of(sequences)
    with _attention(model):
        out = model.base_model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)
    hidden: Tensor = out.last_hidden_state[0]
    return hidden[packed.predicts]


@contextmanager
def _attention(model: PreTrainedModel) -> Iterator[None]:
    """The model's layers ask its configuration, at each call, which attention to use."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


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
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [row, heads, size]
    outputs = []
    for span in packed.spans:
        rows = [
            x.index_select(0, at.flatten()).unflatten(0, at.shape).transpose(1, 2)
            for x, at in ((q, span.queries), (k, span.keys), (v, span.keys))
        ]
        out = F.scaled_dot_product_attention(
            rows[0], rows[1], rows[2], attn_mask=span.visible, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(out.transpose(1, 2)[span.real])
    return torch.cat(outputs).index_select(0, packed.back).unsqueeze(0), None


AttentionInterface.register(NAME, _packed_attention)
