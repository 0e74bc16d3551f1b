"""Attention of a packed row: spans, the mask of the one kernel, and the kernel itself say the same."""

from __future__ import annotations

import shutil
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.model import attention
from policygrain.model.attention import Flex, Spans, visibility
from policygrain.model.logprobs import score_tokens
from policygrain.model.packing import recompute_contexts
from policygrain.model.sequences import pack

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


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here: apt-get install g++")
def test_one_compiled_kernel_serves_rows_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it is compiled for that; compiled for this processor it has a forward pass."""
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


def test_activations_may_be_computed_again() -> None:
    """Checkpointed layers are read again in the backward pass, when packing is over, and give the same gradient."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=1, **sizes)).train()
    prompts = [[5, 6, 7], [5, 6, 7], [8, 9]]
    sequences = pack(prompts, [[1, 2, 3, 4], [4, 3], [2, 1, 2]], 0, torch.device("cpu"))

    def gradient() -> Tensor:
        model.zero_grad()
        score_tokens(model, sequences, 0.7).log_probs.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    kept = gradient()
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": partial(recompute_contexts, model)})
    assert torch.equal(gradient(), kept)
