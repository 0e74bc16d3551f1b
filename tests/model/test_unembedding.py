"""Log-probabilities and entropies in blocks of tokens × vocabulary are those of all logits at once."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain.model import logprobs as unembedding
from policygrain.model.logprobs import blockwise, log_probs_and_entropy

Pair = tuple[Tensor, Tensor]


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float) -> Pair:
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    log_p = (logits / temperature).log_softmax(-1)
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


def gradients(outputs: Pair, inputs: list, seed: int = 0) -> list[Tensor]:
    """Gradients of a random linear combination of both outputs with respect to hidden states, weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
    loss = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
    return list(torch.autograd.grad(loss, [x for x in inputs[:3] if x is not None]))


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 9),
    vocabulary=st.integers(2, 30),
    block=st.tuples(st.integers(1, 10), st.integers(1, 31)),
    temperature=st.sampled_from([1.0, 0.6, 2.5]),
    scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_blocks_equal_all_logits_at_once(tokens, vocabulary, block, temperature, scale, bias, seed):
    inputs = made_up(tokens, 5, vocabulary, scale, seed, bias)
    expected = plain(*inputs, temperature)
    found = blockwise(*inputs, temperature, block=block)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * scale)
    by_inputs = (gradients(outputs, inputs, seed) for outputs in (found, expected))
    torch.testing.assert_close(*by_inputs, rtol=1e-10, atol=1e-10 * scale)


def test_each_output_has_its_own_gradient_and_only_what_needs_one_gets_it():
    """Each output alone; with ``entropy_gradient=False`` a loss of the entropy has no gradient."""
    inputs = made_up(5, 4, 11)
    for which in (0, 1):
        found = torch.autograd.grad(blockwise(*inputs, 0.7, block=(2, 3))[which].sum(), inputs[:3])
        torch.testing.assert_close(found, torch.autograd.grad(plain(*inputs, 0.7)[which].sum(), inputs[:3]))
    log_prob, entropy = blockwise(*inputs, 0.7, entropy_gradient=False, block=(2, 3))
    assert not entropy.requires_grad
    found = torch.autograd.grad((log_prob + entropy).sum(), inputs[:3])
    torch.testing.assert_close(found, torch.autograd.grad(plain(*inputs, 0.7)[0].sum(), inputs[:3]))
    frozen = [inputs[0], *(x.detach() for x in inputs[1:])]
    out, expected = blockwise(*frozen, 1.0, block=(2, 3)), plain(*inputs, 1.0)
    torch.testing.assert_close(*(torch.autograd.grad(sum(x.sum() for x in xs), frozen[:1]) for xs in (out, expected)))


def test_half_precision_is_summed_in_float32():
    """Outputs of a bfloat16 model agree with its numbers in float64; gradients are rounded to bfloat16 once."""
    inputs = [x.detach().bfloat16().requires_grad_() for x in made_up(64, 64, 600, scale=3.0)[:3]]
    targets = torch.arange(64)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = plain(*exact, targets, 0.8)
    found = blockwise(*inputs, targets, 0.8, block=(20, 50))
    assert all(x.dtype == torch.float32 for x in found)
    torch.testing.assert_close([x.double() for x in found], [*expected], rtol=1e-5, atol=1e-5)
    for x, y in zip(gradients(found, inputs), gradients(expected, exact), strict=True):
        assert x.dtype == torch.bfloat16
        # Half a unit in bfloat16's last place, and what float32 loses in sums that cancel.
        torch.testing.assert_close(x.double(), y, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [40, 70])
def test_small_and_large_vocabularies_give_the_same_results(vocabulary, monkeypatch):
    """Vocabularies up to the bound are computed at once, larger ones in blocks."""
    monkeypatch.setattr(unembedding, "PLAIN_VOCABULARY", 50)
    monkeypatch.setattr(unembedding, "blockwise", partial(blockwise, block=(4, 32)))
    hidden, weight, bias, targets = (x if x.dtype == torch.long else x.detach() for x in made_up(9, 8, vocabulary))
    inputs = [x.float().requires_grad_() for x in (hidden, weight, bias)]
    expected = plain(*inputs, targets, 0.7)
    found = log_probs_and_entropy(*inputs, targets, 0.7)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs))
