"""Attention over a packed row: padded spans, the mask of flex_attention and its kernel agree."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters

from policygrain.model import attention
from policygrain.model.attention import Flex, Spans, packed_mask

Lengths = tuple[Tensor, Tensor, Tensor]


@st.composite
def lengths(draw: st.DrawFn) -> Lengths:
    """Lengths of prompts and of responses (0 is possible), and the prompt of each response, in any order."""
    prompts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    responses = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    prompt_of = [draw(st.integers(0, len(prompts) - 1)) for _ in responses]
    return torch.tensor(prompts), torch.tensor(responses), torch.tensor(prompt_of)


def dense_mask(made: Lengths) -> Tensor:
    """The attention mask [row, row], from flex_attention's `mask_mod`."""
    position = torch.arange(int(made[0].sum() + made[1].sum()))
    unused = torch.zeros(())
    return packed_mask(*made)(unused, unused, position.unsqueeze(1), position)


def test_the_mask_of_two_prompts_and_two_responses_written_out() -> None:
    """A row of prompt A (2 tokens), prompt B (1), a response to B (2) and a response to A (1)."""
    expected = [
        # A  A  B  b  b  a
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    made = torch.tensor([2, 1]), torch.tensor([2, 1]), torch.tensor([1, 0])
    assert dense_mask(made).int().tolist() == expected


@settings(max_examples=40, deadline=None)
@given(made=lengths())
def test_spans_have_the_mask_of_the_kernel(made: Lengths) -> None:
    mask = dense_mask(made)
    shown = torch.zeros_like(mask)
    for span in Spans.of(*made).spans:
        row, query = span.valid.nonzero(as_tuple=True)
        for r, q in zip(row.tolist(), query.tolist(), strict=True):
            shown[span.queries[r, q], span.keys[r][span.mask[r, 0, q]]] = True
    assert torch.equal(mask, shown)


@settings(max_examples=15, deadline=None)
@given(made=lengths(), kv_heads=st.sampled_from([4, 2]), seed=st.integers(0, 99))
def test_spans_and_the_kernel_are_dense_attention(made: Lengths, kv_heads: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = dense_mask(made)
    q, k, v = (torch.randn(1, heads, len(mask), 16, generator=generator) for heads in (4, kv_heads, kv_heads))
    dense = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(Spans.of(*made)(q, k, v, 0.3), dense, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Flex.of(*made)(q, k, v, 0.3), dense, rtol=1e-5, atol=1e-6)


@pytest.mark.release
@pytest.mark.needs("compiler")
def test_one_compiled_kernel_serves_rows_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the kernel is compiled for the GPU; compiled for the CPU it has only a forward pass."""
    kernel = attention.compiled()
    monkeypatch.setattr(attention, "_kernel", lambda device: kernel)
    torch._dynamo.reset()
    counters.clear()
    generator = torch.Generator().manual_seed(0)
    for prompts in (3, 5, 9, 14):
        made = (
            torch.randint(5, 40, (prompts,), generator=generator),
            torch.randint(10, 200, (2 * prompts,), generator=generator),
            torch.arange(prompts).repeat_interleave(2),
        )
        row = int(made[0].sum() + made[1].sum())
        q, k, v = (torch.randn(1, heads, row, 32, generator=generator) for heads in (4, 2, 2))
        with torch.no_grad():
            torch.testing.assert_close(Flex.of(*made)(q, k, v, 0.17), Spans.of(*made)(q, k, v, 0.17))
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
