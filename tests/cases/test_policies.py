"""The tabular policy: its probabilities, its samples, and the closed forms of its reward and gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.cases import policies

LENGTH = 5
some = settings(deadline=None, derandomize=True, max_examples=25)
logits = st.lists(st.floats(-3, 3), min_size=LENGTH + 1, max_size=LENGTH + 1).map(
    lambda values: torch.tensor([values], dtype=torch.float64)
)
places = st.integers(0, LENGTH - 2)


def probabilities(logits, first):
    """Of every response. [responses]."""
    return policies.log_probs(logits, policies.every_response(LENGTH), first).sum(-1).exp()[0]


@some
@given(logits=logits, first=places)
def test_the_probabilities_of_all_responses_add_up_to_one(logits, first):
    assert probabilities(logits, first).sum().item() == pytest.approx(1, abs=1e-12)


@some
@given(logits=logits, first=places)
def test_the_expected_reward_is_the_mean_over_all_responses(logits, first):
    wins = policies.reward_probability(policies.every_response(LENGTH), first)[0]
    by_enumeration = (probabilities(logits, first) * wins).sum()
    torch.testing.assert_close(policies.expected_reward(logits)[0], by_enumeration, rtol=0, atol=1e-12)


@some
@given(logits=logits)
def test_the_closed_form_of_the_gradient_is_the_gradient_of_the_expected_reward(logits):
    x = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(policies.expected_reward(x).sum(), x)
    torch.testing.assert_close(policies.exact_gradient(logits), gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", range(LENGTH - 1))
def test_responses_are_sampled_as_often_as_they_are_likely(first):
    values = torch.tensor([[0.5, -1.0, 1.5, 0.3, -0.7, 1.1]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    tokens = policies.sample(values, torch.rand((1, n, LENGTH), generator=generator, dtype=torch.float64), first)
    index = (tokens[0] * 2.0 ** torch.arange(LENGTH - 1, -1, -1)).sum(1).long()
    frequency = index.bincount(minlength=2**LENGTH) / n
    p = probabilities(values, first)
    assert ((frequency - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()


def test_by_hand():
    """p(x1) = 0.5 and p(x2 | 1) = 0.6: J = 0.5·0.6 + 0.5·0.3, ∂J/∂x1 = 0.25·(0.6 − 0.3), ∂J/∂x2 = 0.5·0.6·0.4."""
    policy = policies.start(0.5, 0.6, irrelevant=1)
    assert policies.expected_reward(policy).item() == pytest.approx(0.45)
    assert policies.exact_gradient(policy)[0].tolist() == pytest.approx([0.075, 0.12, 0, 0])
