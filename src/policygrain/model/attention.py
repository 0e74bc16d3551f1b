"""Attention of packed sequences, in two ways: padded batches of similar length, or one flash-attention call on a GPU.

A packed row holds the prompts, each once, followed by the responses. Attention is causal; a prompt token attends to its
prompt, a response token to its prompt and to its own response. Lengths are on the host: nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Span(NamedTuple):
    """A padded batch of sequences of similar length. ``queries`` and ``keys`` are indices into the packed row."""

    queries: Tensor  # [sequences, tokens], padded on the right
    keys: Tensor  # [sequences, keys]: keys that the queries can attend to
    mask: Tensor  # [sequences, 1, tokens, keys]: which keys each query attends to
    valid: Tensor  # [sequences, tokens]: False on padding


@dataclass(frozen=True)
class Spans:
    """Attention in padded batches of similar length: works on any device, in any precision, without a compiler."""

    spans: list[Span]
    order: Tensor  # [row]: index of each token of the row in the spans' outputs, concatenated without padding

    @classmethod
    def of(cls, prompt_lengths: Tensor, response_lengths: Tensor, prompt_of: Tensor, place: torch.device) -> Spans:
        """Lengths of prompts and of responses (tokens in the row), and each response's prompt: all on the host."""
        prompts, prompt_valid = packed_positions(prompt_lengths, 0)
        responses, response_valid = packed_positions(response_lengths, int(prompt_lengths.sum()))
        step, response_step = (torch.arange(x.shape[1]) for x in (prompts, responses))
        spans = [Span(prompts, prompts, (step.unsqueeze(1) >= step).expand(len(prompts), 1, -1, -1), prompt_valid)]
        for rows in _length_buckets(response_lengths):
            width = int(response_lengths[rows].max())
            responses_of_rows, t = responses[rows, :width], response_step[:width]
            causal = (t.unsqueeze(1) >= t).expand(len(rows), 1, -1, -1)
            prompt = prompt_valid[prompt_of[rows]][:, None, None].expand(-1, 1, width, -1)
            keys = torch.cat([prompts[prompt_of[rows]], responses_of_rows], 1)
            spans.append(Span(responses_of_rows, keys, torch.cat([prompt, causal], 3), response_valid[rows, :width]))
        order = torch.cat([span.queries[span.valid] for span in spans]).argsort()
        return cls([Span(*to_device(span, place)) for span in spans], *to_device([order], place))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """[row, heads, size] each, keys and values perhaps with fewer heads → [row, heads, size]."""
        grouped, outputs = query.shape[1] != key.shape[1], []
        for span in self.spans:
            rows = [
                x.index_select(0, at.flatten()).unflatten(0, at.shape).transpose(1, 2)
                for x, at in ((query, span.queries), (key, span.keys), (value, span.keys))
            ]
            q, k, v = rows
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=span.mask, scale=scale, enable_gqa=grouped)
            outputs.append(out.transpose(1, 2)[span.valid])
        return torch.cat(outputs).index_select(0, self.order)


@dataclass(frozen=True)
class Varlen:
    """Attention by one flash-attention call on a GPU in half precision: no padding, no mask.

    The kernel aligns the causal mask to the last query and the last key of a sequence (pytorch#193630,
    flash-attention#1778), which is the mask of the packed row.
    """

    keys: Tensor  # [keys]: index in the row of each key, sequence by sequence
    queries_end: Tensor  # int32 [sequences + 1]: queries of the sequences so far
    keys_end: Tensor  # int32 [sequences + 1]
    longest: tuple[int, int]  # queries, keys of a sequence

    @classmethod
    def of(cls, prompt_lengths: Tensor, response_lengths: Tensor, prompt_of: Tensor, place: torch.device) -> Varlen:
        own = torch.cat([prompt_lengths, response_lengths])
        first = own.cumsum(0) - own
        read = torch.cat([torch.zeros_like(prompt_lengths), prompt_lengths[prompt_of]])  # prompt tokens before its own
        read_first = torch.cat([torch.zeros_like(prompt_lengths), first[: len(prompt_lengths)][prompt_of]])
        total = read + own
        sequence = torch.arange(len(total)).repeat_interleave(total)
        place_in_sequence = torch.arange(int(total.sum())) - (total.cumsum(0) - total)[sequence]
        start = torch.where(place_in_sequence < read[sequence], read_first[sequence], (first - read)[sequence])
        queries_end, keys_end = (F.pad(x.cumsum(0), (1, 0)).to(torch.int32) for x in (own, total))
        keys, queries_end, keys_end = to_device((start + place_in_sequence, queries_end, keys_end), place)
        return cls(keys, queries_end, keys_end, (int(own.max()), int(total.max())))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """[row, heads, size] each, keys and values perhaps with fewer heads → [row, heads, size]."""
        from torch.nn.attention.varlen import varlen_attn  # it imports torch's compiler

        q, k, v = query, key, value
        if torch.is_autocast_enabled(query.device.type):  # rotary embeddings return queries and keys in float32
            q, k, v = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (q, k, v))
        k, v = (x.index_select(0, self.keys) for x in (k, v))
        ends: Any = self.queries_end, self.keys_end, *self.longest
        out: Any = varlen_attn(q, k, v, *ends, scale=scale, window_size=(-1, 0), enable_gqa=True)
        if out.requires_grad:
            # The kernel adds in a fixed order only where other operations that cannot would be refused.
            out.register_hook(lambda _: _fixed_order(refuses=True))
            first = next(x for x in (q, k, v) if x.requires_grad)  # an adapter may leave queries without gradient
            first.register_hook(lambda _: _fixed_order(refuses=False))
        return out

    @staticmethod
    def runs(place: torch.device, dtype: torch.dtype, head_size: int) -> bool:
        """Whether flash attention can compute passes in ``dtype`` on this device."""
        fits = dtype in (torch.bfloat16, torch.float16) and head_size % 8 == 0 and head_size <= 256
        return place.type == "cuda" and fits and torch.cuda.get_device_capability(place) >= (8, 0)


def _fixed_order(refuses: bool) -> None:
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=not refuses)


def to_device(tensors: Iterable[Tensor], place: torch.device) -> list[Tensor]:
    """Copies of host tensors on ``place``, without waiting for the work that a GPU still has to do."""
    if place.type != "cuda":
        return [x.to(place) for x in tensors]
    return [x.contiguous().pin_memory().to(place, non_blocking=True) for x in tensors]


def packed_positions(lengths: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Places of sequences of these ``lengths`` in the row, [sequences, tokens], and which of them are no padding."""
    column = torch.arange(int(lengths.max()))
    valid = column < lengths.unsqueeze(1)
    first = start + lengths.cumsum(0) - lengths
    return torch.where(valid, first.unsqueeze(1) + column, 0), valid


def _length_buckets(lengths: Tensor) -> list[Tensor]:
    """Indices of sequences that are not empty, by length: a group's longest is at most 1.5 × its shortest + 8."""
    order = lengths.argsort(stable=True)
    values = lengths[order].tolist()
    cuts, shortest = [values.count(0)], 0
    for row, value in enumerate(values):
        if value > 1.5 * shortest + 8:
            shortest = value
            if row > cuts[-1]:
                cuts.append(row)
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(values)], strict=True) if b > a]
