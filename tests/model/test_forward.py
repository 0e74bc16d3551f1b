"""A forward pass: attention over a packed row, against one pass per response, and log-probabilities in blocks."""

from typing import Any

import pytest
import torch
import torch.nn.attention.varlen
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.model.attention import Spans, Varlen
from policygrain.model.device import device
from policygrain.model.scoring import MTPHeads, log_probs_and_entropy, micro_batches, score_tokens
from policygrain.model.small import SmallModel

from ..support.engines import random_rollouts

CPU = torch.device("cpu")


@st.composite
def lengths(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Lengths of prompts and of responses (0 is possible), and the prompt of each response, in any order."""
    prompts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    responses = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    prompt_of = [draw(st.integers(0, len(prompts) - 1)) for _ in responses]
    return torch.tensor(prompts), torch.tensor(responses), torch.tensor(prompt_of)


def dense_mask(made: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Whether position q of the row attends to position k, [row, row]: causal, own prompt, own response."""
    prompts, responses, prompt_of = (x.tolist() for x in made)
    owner = [(p, -1) for p, n in enumerate(prompts) for _ in range(n)]
    owner += [(prompt_of[r], r) for r, n in enumerate(responses) for _ in range(n)]
    prompt, response = torch.tensor(owner).T
    own = (response == -1) | (response == response.unsqueeze(1))
    return (own & (prompt == prompt.unsqueeze(1))).tril()


def flash_by_sequence(*given: Any, scale: float, window_size: tuple[int, int], enable_gqa: bool) -> Tensor:
    """What the kernel computes, in any precision: the last query of a sequence attends to all of its keys."""
    query, key, value, queries_end, keys_end, *longest = given
    assert window_size == (-1, 0) and enable_gqa
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
        torch.randn(len(mask), heads, 16, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    ]
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in inputs)
    dense = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)[0].transpose(0, 1)
    by = torch.randn(dense.shape, generator=generator, dtype=torch.float64)
    expected = dense, *torch.autograd.grad(dense, inputs, by)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.attention.varlen, "varlen_attn", flash_by_sequence)
        for kind in (Spans, Varlen):
            out = kind.of(*made, CPU)(*inputs, 0.3)
            found = out, *torch.autograd.grad(out, inputs, by)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_layers_in_autocast_give_the_flash_call_one_precision(monkeypatch):
    """Rotary embeddings return float32 queries and keys there, and values are in half precision."""
    made = torch.tensor([3]), torch.tensor([2]), torch.tensor([0])
    q, k, v = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16).bfloat16()

    def flash(*given: Tensor, **_: object) -> Tensor:
        assert {x.dtype for x in given[:3]} == {torch.bfloat16}
        return given[0]

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", flash)
    with torch.autocast("cpu", torch.bfloat16):
        assert Varlen.of(*made, CPU)(q, k, v).shape == (5, 4, 16)


@pytest.mark.needs("gpu")
@pytest.mark.parametrize("kv_heads", [12, 2])
def test_the_kernel_of_a_gpu_is_as_exact_as_its_precision(kv_heads):
    """Against spans in float64, beside spans in bfloat16; an empty response is among them."""
    generator = torch.Generator().manual_seed(0)
    made = torch.tensor([64, 3, 200]), torch.tensor([200, 0, 17, 128, 255]), torch.tensor([0, 1, 2, 2, 0])
    row = int(made[0].sum() + made[1].sum())
    exact = [
        torch.randn(row, heads, 128, generator=generator, dtype=torch.float64).to(device())
        for heads in (12, kv_heads, kv_heads)
    ]
    by = torch.randn(row, 12, 128, generator=generator, dtype=torch.float64).to(device())

    def results(kind: type[Spans] | type[Varlen], dtype: torch.dtype) -> list[Tensor]:
        inputs = [x.to(dtype).requires_grad_() for x in exact]
        out = kind.of(*made, device())(*inputs, 128**-0.5)
        return [out.detach(), *torch.autograd.grad(out, inputs, by.to(dtype))]

    truth = results(Spans, torch.float64)
    for found, peer, true in zip(results(Varlen, torch.bfloat16), results(Spans, torch.bfloat16), truth, strict=True):
        error, of_peer = ((x.double() - true).norm() / true.norm() for x in (found, peer))
        assert error < max(1.5 * of_peer, 5e-3)


def small_qwen(heads: int, key_heads: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": heads}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=key_heads, initializer_range=0.3, **sizes))


@pytest.mark.parametrize("small", [False, True], ids=["transformers", "small"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["all heads", "grouped heads"])
def test_a_packed_pass_equals_one_pass_per_response(heads, small):
    """Log-probabilities, entropies and gradients of the packed pass against plain forward passes, one per response."""
    model = small_qwen(*heads)
    packed: Any = SmallModel(model.config, model.state_dict()) if small else model
    rollouts = random_rollouts(14, 20, 50)
    rollouts[3].ids = rollouts[3].ids[:1]  # a single token is predicted but never an input
    log_probs, entropy = score_tokens(packed, rollouts, temperature=0.7)[:2]
    (log_probs + 0.1 * entropy).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in packed.parameters()])
    model.zero_grad()
    for row, (prompt, response) in enumerate((r.prompt, r.ids) for r in rollouts):
        log_p = (model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        chosen, h = log_p.gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(1)
        assert torch.allclose(log_probs[row, : len(response)], chosen, atol=1e-4)
        assert torch.allclose(entropy[row, : len(response)], h, atol=1e-4)
        assert not log_probs[row, len(response) :].any()
        (chosen + 0.1 * h).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (gradient - plain).norm() < 1e-5 * plain.norm()


@pytest.mark.parametrize("budget", [1, 150, 400, 1000])
def test_micro_batches_hold_every_row_once_within_the_budget_and_whole_groups_where_they_fit(budget):
    """Three rows have the same prompt; only groups that are larger than the budget are divided."""
    rollouts = random_rollouts(60, 30, 60)

    def tokens(rows: list[int]) -> int:
        return sum(map(len, {tuple(rollouts[i].prompt) for i in rows})) + sum(len(rollouts[i].ids) for i in rows)

    cut = [part.tolist() for part in micro_batches(rollouts, budget)]
    assert sorted(row for part in cut for row in part) == list(range(60)) and len(cut) > 1
    assert all(len(part) == 1 or tokens(part) <= budget for part in cut)
    for rows in ([*range(i, i + 3)] for i in range(0, 60, 3)):
        assert tokens(rows) > budget or sum(bool({*rows} & {*part}) for part in cut) == 1


def test_prediction_heads_foresee_what_a_plain_pass_says():
    """Head n at the hidden state that predicts token t, scored on token t+n; the heads' loss trains the heads alone."""
    model, heads = small_qwen(4, 2), MTPHeads(32, count=3)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rollouts = random_rollouts(6, 8, 9)
    scores = score_tokens(model, rollouts, 0.7, heads=heads)
    assert scores.future is not None and scores.future_loss is not None
    loss = 0.0
    for row, (prompt, response) in enumerate((r.prompt, r.ids) for r in rollouts):
        states = model.model(torch.tensor([prompt + response])).last_hidden_state[0, len(prompt) - 1 : -1]
        for t, state in enumerate(states):
            logits = [model.lm_head(state + head(state)) for head in heads.heads]
            ahead = [(x, response[t + n]) for n, x in enumerate(logits, start=1) if t + n < len(response)]
            expected = sum(float((x / 0.7).log_softmax(-1)[token]) for x, token in ahead)
            assert float(scores.future[row, t]) == pytest.approx(expected, abs=1e-4)
            loss -= sum(float(x.log_softmax(-1)[token]) for x, token in ahead)
    assert float(scores.future_loss) == pytest.approx(loss, rel=1e-4)
    scores.future_loss.backward()
    assert all(p.grad is not None for p in heads.parameters())
    assert all(p.grad is None for p in model.parameters())


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float) -> tuple:
    log_p = (F.linear(hidden, weight, bias) / temperature).log_softmax(-1)
    return log_p.gather(1, targets.unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def made_up(tokens: int, size: int, vocabulary: int, scale: float = 1.0, seed: int = 0, bias: bool = True) -> list:
    """Hidden states, weight, bias and targets, float64; logits are about ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(tokens, size), (vocabulary, size), (vocabulary,)]
    inputs = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs[1] *= scale / size**0.5
    inputs[2] *= scale
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return [*(x.requires_grad_() for x in inputs[:2]), inputs[2].requires_grad_() if bias else None, targets]


def gradients(outputs: tuple, inputs: list, seed: int = 0) -> list[Tensor]:
    """Gradients of a random linear combination of both outputs with respect to the inputs that need one."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
    loss = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
    return list(torch.autograd.grad(loss, [x for x in inputs if x is not None and x.requires_grad]))


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 9),
    vocabulary=st.integers(2, 30),
    block=st.integers(1, 10),
    temperature=st.sampled_from([1.0, 0.6, 2.5]),
    scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]),
    bias=st.booleans(),
    trained=st.booleans(),
    of_entropy=st.booleans(),
    seed=st.integers(0, 99),
)
def test_blocks_equal_all_logits_at_once(
    tokens, vocabulary, block, temperature, scale, bias, trained, of_entropy, seed
):
    """Only what needs a gradient gets one, of the entropy only where it is asked for."""
    inputs = made_up(tokens, 5, vocabulary, scale, seed, bias)
    inputs[1].requires_grad_(trained)
    chosen, entropy = plain(*inputs, temperature)
    expected = chosen, entropy if of_entropy else entropy.detach()
    found = log_probs_and_entropy(*inputs, temperature, of_entropy, block=block)
    assert found[1].requires_grad is of_entropy
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * scale)
    by_inputs = (gradients(outputs, inputs, seed) for outputs in (found, expected))
    torch.testing.assert_close(*by_inputs, rtol=1e-10, atol=1e-10 * scale)


def test_half_precision_is_summed_in_float32():
    """Outputs of a bfloat16 model agree with its numbers in float64; gradients are rounded to bfloat16."""
    inputs = [x.detach().bfloat16().requires_grad_() for x in made_up(64, 64, 600, scale=3.0)[:3]]
    targets = torch.arange(64)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = plain(*exact, targets, 0.8)
    found = log_probs_and_entropy(*inputs, targets, 0.8, block=20)
    assert all(x.dtype == torch.float32 for x in found)
    torch.testing.assert_close([x.double() for x in found], [*expected], rtol=1e-5, atol=1e-5)
    for x, y in zip(gradients(found, inputs), gradients(expected, exact), strict=True):
        # A gradient of a block is rounded to half a unit in bfloat16's last place, and so are sums over blocks.
        assert x.dtype == torch.bfloat16 and (x.double() - y).norm() < 2**-8 * y.norm()
