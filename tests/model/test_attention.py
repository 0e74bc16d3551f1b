"""Attention over a packed row: padded spans and the flash call are dense attention with the mask of the row."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain.model import attention
from policygrain.model.attention import Spans, Varlen

from ..support.device import PLACE

Lengths = tuple[Tensor, Tensor, Tensor]
CPU = torch.device("cpu")


@st.composite
def lengths(draw: st.DrawFn) -> Lengths:
    """Lengths of prompts and of responses (0 is possible), and the prompt of each response, in any order."""
    prompts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    responses = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    prompt_of = [draw(st.integers(0, len(prompts) - 1)) for _ in responses]
    return torch.tensor(prompts), torch.tensor(responses), torch.tensor(prompt_of)


def dense_mask(made: Lengths) -> Tensor:
    """Whether position q of the row attends to position k, [row, row]: causal, own prompt, own response."""
    prompts, responses, prompt_of = (x.tolist() for x in made)
    owner = [(p, -1) for p, n in enumerate(prompts) for _ in range(n)]
    owner += [(prompt_of[r], r) for r, n in enumerate(responses) for _ in range(n)]
    return torch.tensor(
        [
            [k <= q and to[0] == at[0] and to[1] in (-1, at[1]) for k, to in enumerate(owner)]
            for q, at in enumerate(owner)
        ]
    )


def flash_by_sequence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries_end: Tensor,
    keys_end: Tensor,
    longest: tuple[int, int],
    scale: float | None,
) -> Tensor:
    """What the kernel computes, in any precision: the last query of a sequence attends to all of its keys."""
    outputs = []
    for i in range(len(queries_end) - 1):
        q, k = slice(*queries_end[i : i + 2].tolist()), slice(*keys_end[i : i + 2].tolist())
        n, m = q.stop - q.start, k.stop - k.start
        assert n <= longest[0] and m <= longest[1]
        mask = torch.arange(m) <= torch.arange(n).unsqueeze(1) + (m - n)
        parts = (x.transpose(0, 1).unsqueeze(0) for x in (query[q], key[k], value[k]))
        out = F.scaled_dot_product_attention(*parts, attn_mask=mask, scale=scale, enable_gqa=True)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


@settings(max_examples=40, deadline=None)
@given(made=lengths(), kv_heads=st.sampled_from([4, 2]), seed=st.integers(0, 99))
def test_spans_and_the_flash_call_are_dense_attention_with_its_gradients(made, kv_heads, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = dense_mask(made)
    inputs = [
        torch.randn(1, heads, len(mask), 16, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    ]
    dense = F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    by = torch.randn(dense.shape, generator=generator, dtype=torch.float64)
    expected = dense, *torch.autograd.grad(dense, inputs, by)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "flash", flash_by_sequence)
        for kind in (Spans, Varlen):
            out = kind.of(*made, CPU)(*inputs, 0.3)
            found = out, *torch.autograd.grad(out, inputs, by)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_layers_in_autocast_give_the_flash_call_one_precision(monkeypatch):
    """Rotary embeddings return float32 queries and keys there, and values are in half precision."""
    made = torch.tensor([3]), torch.tensor([2]), torch.tensor([0])
    q, k, v = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16).bfloat16()

    def flash(*given: Tensor) -> Tensor:
        assert {x.dtype for x in given[:3]} == {torch.bfloat16}
        return given[0]

    monkeypatch.setattr(attention, "flash", flash)
    with torch.autocast("cpu", torch.bfloat16):
        assert Varlen.of(*made, CPU)(q, k, v, None).shape == (1, 5, 4, 16)


@pytest.mark.needs("gpu")
@pytest.mark.parametrize("kv_heads", [12, 2])
def test_the_kernel_of_a_gpu_is_as_exact_as_its_precision(kv_heads):
    """Against spans in float64, beside spans in bfloat16; an empty response is among them."""
    generator = torch.Generator().manual_seed(0)
    made = torch.tensor([64, 3, 200]), torch.tensor([200, 0, 17, 128, 255]), torch.tensor([0, 1, 2, 2, 0])
    row = int(made[0].sum() + made[1].sum())
    exact = [
        torch.randn(1, heads, row, 128, generator=generator, dtype=torch.float64).to(PLACE)
        for heads in (12, kv_heads, kv_heads)
    ]
    by = torch.randn(1, row, 12, 128, generator=generator, dtype=torch.float64).to(PLACE)

    def results(kind: type[Spans] | type[Varlen], dtype: torch.dtype) -> list[Tensor]:
        inputs = [x.to(dtype).requires_grad_() for x in exact]
        out = kind.of(*made, PLACE)(*inputs, 128**-0.5)
        return [out.detach(), *torch.autograd.grad(out, inputs, by.to(dtype))]

    truth = results(Spans, torch.float64)
    for found, peer, true in zip(results(Varlen, torch.bfloat16), results(Spans, torch.bfloat16), truth, strict=True):
        error, of_peer = ((x.double() - true).norm() / true.norm() for x in (found, peer))
        assert error < max(1.5 * of_peer, 5e-3)
