"""Attention of a packed row: spans, the mask of the one kernel, and the kernel itself say the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain.model.attention import Flex, Spans, visibility

Lengths = tuple[Tensor, Tensor, Tensor]


@st.composite
def lengths(draw: st.DrawFn) -> Lengths:
    """Prompts, what is read of responses (perhaps nothing), and whose prompt each has, in any order."""
    prompts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    reads = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    owner = [draw(st.integers(0, len(prompts) - 1)) for _ in reads]
    return torch.tensor(prompts), torch.tensor(reads), torch.tensor(owner)


def whole_mask(made: Lengths) -> Tensor:
    """[row, row]: who sees whom, by the kernel's mask."""
    place = torch.arange(int(made[0].sum() + made[1].sum()))
    nothing = torch.zeros(())
    return visibility(*made)(nothing, nothing, place.unsqueeze(1), place)


@settings(max_examples=40, deadline=None)
@given(made=lengths())
def test_the_mask_is_what_spans_show(made: Lengths) -> None:
    mask = whole_mask(made)
    shown = torch.zeros_like(mask)
    for span in Spans.of(*made).spans:
        row, query = span.real.nonzero(as_tuple=True)
        for r, q in zip(row.tolist(), query.tolist(), strict=True):
            shown[span.queries[r, q], span.keys[r][span.visible[r, 0, q]]] = True
    assert torch.equal(mask, shown)


@settings(max_examples=15, deadline=None)
@given(made=lengths(), kv_heads=st.sampled_from([4, 2]), seed=st.integers(0, 99))
def test_spans_and_the_kernel_are_dense_attention(made: Lengths, kv_heads: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = whole_mask(made)
    q, k, v = (torch.randn(1, heads, len(mask), 16, generator=generator) for heads in (4, kv_heads, kv_heads))
    dense = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(Spans.of(*made)(q, k, v, 0.3), dense, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Flex.of(*made)(q, k, v, 0.3), dense, rtol=1e-5, atol=1e-6)
