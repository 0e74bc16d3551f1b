"""The attention mask of packed sequences, computed in two ways: padded batches of similar length, or flex_attention.

A packed row holds the prompts, each once, followed by the responses. Attention is causal; a prompt token attends to its
prompt, a response token to its prompt and to its own response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


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
    def of(cls, prompt_lengths: Tensor, response_lengths: Tensor, prompt_of: Tensor) -> Spans:
        """The spans of a row.

        ``prompt_lengths`` [prompts]; ``response_lengths`` [responses], in tokens that are in the row; ``prompt_of``
        [responses], the index of each response's prompt.
        """
        prompts, prompt_valid = packed_positions(prompt_lengths, 0)
        responses, response_valid = packed_positions(response_lengths, int(prompt_lengths.sum()))
        step, response_step = (torch.arange(x.shape[1], device=prompt_of.device) for x in (prompts, responses))
        spans = [Span(prompts, prompts, (step.unsqueeze(1) >= step).expand(len(prompts), 1, -1, -1), prompt_valid)]
        for rows in _length_buckets(response_lengths):
            width = int(response_lengths[rows].max())
            responses_of_rows, t = responses[rows, :width], response_step[:width]
            causal = (t.unsqueeze(1) >= t).expand(len(rows), 1, -1, -1)
            prompt = prompt_valid[prompt_of[rows]][:, None, None].expand(-1, 1, width, -1)
            keys = torch.cat([prompts[prompt_of[rows]], responses_of_rows], 1)
            spans.append(Span(responses_of_rows, keys, torch.cat([prompt, causal], 3), response_valid[rows, :width]))
        return cls(spans, torch.cat([span.queries[span.valid] for span in spans]).argsort())

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[1, heads, row, size] each, keys and values perhaps with fewer heads → [1, row, heads, size]."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [row, heads, size]
        outputs = []
        for span in self.spans:
            rows = [
                x.index_select(0, at.flatten()).unflatten(0, at.shape).transpose(1, 2)
                for x, at in ((q, span.queries), (k, span.keys), (v, span.keys))
            ]
            out = F.scaled_dot_product_attention(
                rows[0], rows[1], rows[2], attn_mask=span.mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            outputs.append(out.transpose(1, 2)[span.valid])
        return torch.cat(outputs).index_select(0, self.order).unsqueeze(0)


@dataclass(frozen=True)
class Flex:
    """flex_attention over the packed row: no copies, no padding, and fully masked blocks are skipped.

    The kernel is compiled for a GPU. On a CPU only its slow forward pass is available; a test compares it with `Spans`.
    """

    mask: BlockMask

    @classmethod
    def of(cls, prompt_lengths: Tensor, response_lengths: Tensor, prompt_of: Tensor) -> Flex:
        """Same arguments as `Spans.of`."""
        row = int(prompt_lengths.sum() + response_lengths.sum())
        mask_mod = packed_mask(prompt_lengths, response_lengths, prompt_of)
        return cls(create_block_mask(mask_mod, None, None, row, row, device=prompt_of.device))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[1, heads, row, size] each, keys and values perhaps with fewer heads → [1, row, heads, size]."""
        grouped = query.shape[1] != key.shape[1]
        out: Tensor = _kernel(query.device.type)(
            query, key, value, block_mask=self.mask, scale=scale, enable_gqa=grouped
        )
        return out.transpose(1, 2)


@cache
def _kernel(device: str) -> Callable[..., Any]:
    if device == "cpu":
        return flex_attention
    # By default a short row would use the decoding kernel, which does not support all numbers of grouped heads.
    return partial(compiled(), kernel_options={"BACKEND": "TRITON"})


def compiled() -> Callable[..., Any]:
    """flex_attention, compiled once for rows of all lengths.

    Without ``dynamic=True`` it is compiled anew for each length until torch's recompilation limit, after which it falls
    back to the full score matrix.
    """
    kernel: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return kernel


def packed_mask(
    prompt_lengths: Tensor, response_lengths: Tensor, prompt_of: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """flex_attention's `mask_mod`: whether position ``q`` of a packed row attends to position ``k``.

    Same arguments as `Spans.of`.
    """
    prompts = torch.arange(len(prompt_lengths), device=prompt_of.device)
    none = torch.full_like(prompts, -1)
    responses = torch.arange(len(prompt_of), device=prompt_of.device)
    lengths = torch.cat([prompt_lengths, response_lengths])
    prompt = torch.cat([prompts, prompt_of]).repeat_interleave(lengths)
    response = torch.cat([none, responses]).repeat_interleave(lengths)  # -1: part of a prompt

    def mask_mod(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # Prompts precede responses in the row, so k <= q is the causal mask of both.
        return (k <= q) & (prompt[q] == prompt[k]) & ((response[k] < 0) | (response[q] == response[k]))

    return mask_mod


def packed_positions(lengths: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Indices into the packed row of consecutive sequences of these ``lengths``, the first one at ``start``.

    [sequences, tokens], padded with 0 on the right; and the mask of entries that are not padding.
    """
    column = torch.arange(int(lengths.max()), device=lengths.device)
    valid = column < lengths.unsqueeze(1)
    first = start + lengths.cumsum(0) - lengths
    return torch.where(valid, first.unsqueeze(1) + column, 0), valid


def _length_buckets(lengths: Tensor) -> list[Tensor]:
    """Indices of the sequences that are not empty, sorted by length and grouped.

    A group's longest sequence is at most 1.5 times as long as its shortest, plus 8 tokens.
    """
    order = lengths.argsort(stable=True)
    values = lengths[order].tolist()
    cuts, shortest = [values.count(0)], 0
    for row, value in enumerate(values):
        if value > 1.5 * shortest + 8:
            shortest = value
            if row > cuts[-1]:
                cuts.append(row)
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(values)], strict=True) if b > a]
