"""Who sees whom in a packed row, computed in two ways: spans of like length, or one kernel that skips what is hidden.

A row holds prompts, each once, and then responses. A token sees the tokens of its prompt and of its own response, up
to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


class Attention(Protocol):
    """Attention of a packed row."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """[1, heads, row, size] each, keys and values perhaps with fewer heads → [1, row, heads, size]."""
        ...


class Span(NamedTuple):
    """Rows of like length whose attention is computed together. Places are in the packed row."""

    queries: Tensor  # [rows, tokens], padded on the right
    keys: Tensor  # [rows, keys]: the tokens that they may look at
    visible: Tensor  # [rows, 1, tokens, keys]
    real: Tensor  # [rows, tokens]: which queries are no padding


@dataclass(frozen=True)
class Spans:
    """Tokens are spread out into padded batches of like length: any device, any precision, no compiler."""

    spans: list[Span]
    back: Tensor  # [row]: where in the spans' outputs, padding left out, each place is

    @classmethod
    def of(cls, prompt_lengths: Tensor, read_lengths: Tensor, owner: Tensor) -> Spans:
        """``prompt_lengths`` [prompts]; ``read_lengths`` and ``owner``, a response's prompt, [responses]."""
        prompts, prompt_real = places(prompt_lengths, 0)
        queries, query_real = places(read_lengths, int(prompt_lengths.sum()))
        step, query_step = (torch.arange(x.shape[1], device=owner.device) for x in (prompts, queries))
        spans = [Span(prompts, prompts, (step.unsqueeze(1) >= step).expand(len(prompts), 1, -1, -1), prompt_real)]
        for rows in _alike(read_lengths):
            width = int(read_lengths[rows].max())
            own, ask = queries[rows, :width], query_step[:width]
            earlier = (ask.unsqueeze(1) >= ask).expand(len(rows), 1, -1, -1)
            prompt = prompt_real[owner[rows]][:, None, None].expand(-1, 1, width, -1)
            keys = torch.cat([prompts[owner[rows]], own], 1)
            spans.append(Span(own, keys, torch.cat([prompt, earlier], 3), query_real[rows, :width]))
        return cls(spans, torch.cat([span.queries[span.real] for span in spans]).argsort())

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """See `Attention`."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [row, heads, size]
        outputs = []
        for span in self.spans:
            rows = [
                x.index_select(0, at.flatten()).unflatten(0, at.shape).transpose(1, 2)
                for x, at in ((q, span.queries), (k, span.keys), (v, span.keys))
            ]
            out = F.scaled_dot_product_attention(
                rows[0], rows[1], rows[2], attn_mask=span.visible, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            outputs.append(out.transpose(1, 2)[span.real])
        return torch.cat(outputs).index_select(0, self.back).unsqueeze(0)


@dataclass(frozen=True)
class Flex:
    """flex_attention on the row as it lies: no copies, no padding, and blocks where nobody sees anybody cost nothing.

    The kernel is compiled for a GPU. On a CPU there is only its slow forward pass, which a test compares with `Spans`.
    """

    mask: BlockMask

    @classmethod
    def of(cls, prompt_lengths: Tensor, read_lengths: Tensor, owner: Tensor) -> Flex:
        """As `Spans.of`."""
        row = int(prompt_lengths.sum() + read_lengths.sum())
        visible = visibility(prompt_lengths, read_lengths, owner)
        return cls(create_block_mask(visible, None, None, row, row, device=owner.device))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """See `Attention`."""
        grouped = query.shape[1] != key.shape[1]
        out: Tensor = _kernel(query.device.type)(
            query, key, value, block_mask=self.mask, scale=scale, enable_gqa=grouped
        )
        return out.transpose(1, 2)


@cache
def _kernel(device: str) -> Callable[..., Any]:
    if device == "cpu":
        return flex_attention
    # A short row, left to itself, would take the kernel for decoding, which not all numbers of grouped heads have.
    return partial(compiled(), kernel_options={"BACKEND": "TRITON"})


def compiled() -> Callable[..., Any]:
    """flex_attention, compiled once for rows of all lengths: anew for each, torch would soon give up and compute every
    score.
    """
    kernel: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return kernel


def visibility(
    prompt_lengths: Tensor, read_lengths: Tensor, owner: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """flex_attention's `mask_mod`: whether the place ``q`` of a packed row sees the place ``k``."""
    count = torch.arange(len(prompt_lengths), device=owner.device)
    none = torch.full_like(count, -1)
    responses = torch.arange(len(owner), device=owner.device)
    lengths = torch.cat([prompt_lengths, read_lengths])
    prompt = torch.cat([count, owner]).repeat_interleave(lengths)
    response = torch.cat([none, responses]).repeat_interleave(lengths)  # -1: part of a prompt

    def mask_mod(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # Prompts lie before responses, so that earlier places are what can be seen of both.
        return (k <= q) & (prompt[q] == prompt[k]) & ((response[k] < 0) | (response[q] == response[k]))

    return mask_mod


def places(lengths: Tensor, start: int) -> tuple[Tensor, Tensor]:
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
