"""Clips other than PPO's and Clip-Cov's, by hand (float64); what they are equal to is in test_identities.py."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective.clip import Sapo
from policygrain.objective.method import CHOICES

from ..support.batches import by_hand, close, few, fields
from . import BY_HAND

W = exp(0.5)


@pytest.mark.parametrize("case", BY_HAND["surrogates"], ids=lambda case: case["clip"]["name"])
def test_surrogates_by_hand(case):
    kind = CHOICES["clip"][case["clip"]["name"]]
    batch = by_hand(case["log_ratio"], case["advantages"])
    found = kind(**case["clip"])(batch.log_ratio.exp(), batch)
    close(found.value, case["value"])
    nowhere = torch.zeros_like(batch.mask).int().tolist()
    assert found.low.int().tolist() == case.get("low", nowhere)
    assert found.high.int().tolist() == case.get("high", nowhere)


def test_sapo_is_the_ratio_near_one_and_flat_far_from_it():
    """du/dr = 4σ(1−σ)Â: Â at r = 1, and 4 · 0.881 · 0.119 Â where τ(r−1) = 2."""
    r = torch.tensor([[1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    gate = 1 / (1 + exp(-2.0))
    value = Sapo()(r, by_hand([[0.0, log(3.0)]], [1.5])).value
    close(torch.autograd.grad(value.sum(), r)[0], [[1.5, 4 * gate * (1 - gate) * 1.5]])


def test_vespo_multiplies_its_weight_with_the_correction_once():
    """With correction weights ½ and 1 the first response's W is halved; the loss is a mean over four tokens."""
    batch = by_hand([[0.2, 0.3], [0.2, 0.3]], [1.0, -1.0])
    corrected = batch.replace(rollout_weights=torch.tensor([[0.5, 1.0], [1.0, 1.0]], dtype=torch.float64))
    half, negative = (W / 2) ** 2 * exp(3 * (1 - W / 2)), W**3 * exp(2 * (1 - W))
    close(method("vespo").loss(corrected).loss, -(half * -1.5 + negative * 1.5) / 4)


def test_dro_is_a_likelihood_with_a_quadratic_penalty():
    """u = Â log π, penalty (β/2) ℓ², a mean over two tokens: Tinker's documented formula, as a mean."""
    out = method("dro", penalties=[{"name": "squared_log_ratio", "coefficient": 0.5}])
    close(out.loss(by_hand([[0.2, -0.4]], [2.0])).loss, -(2 * (-0.8) - 0.01 + 2 * (-1.4) - 0.04) / 2)


def test_luspo_divides_the_sum_over_responses_by_their_number():
    """Two tokens and one, ratio 1, Â = 1 and 2: (2 · 1 + 1 · 2) / 2."""
    batch = by_hand([[0.0, 0.0], [0.0, 0.0]], [1.0, 2.0], [[1, 1], [1, 0]])
    close(method("luspo").loss(batch).loss, -2.0)


def m2po_mask(batch, budget):
    """Algorithm 1 as a loop: True where the token is kept."""
    kept, square = batch.mask.clone(), batch.log_ratio.square()
    while True:
        inside = kept & (batch.advantages * batch.log_ratio > 0)
        if not inside.any() or square[inside].mean() <= budget:
            return kept
        kept.view(-1)[torch.where(inside, square, -1.0).argmax()] = False


@few
@given(data=fields(min_live=1), budget=st.floats(1e-3, 0.3))
def test_m2po_is_the_loop_of_its_paper(data, budget):
    batch = TokenBatch(**data)
    kept = m2po_mask(batch, budget)
    out = method("dapo", clip={"name": "m2po", "budget": budget}).loss(batch)
    close(out.loss, -(batch.log_ratio.exp() * batch.advantages * (batch.mask & kept)).sum() / batch.whole.n_tokens)
    clipped = out.metrics["clip_fraction_low"] + out.metrics["clip_fraction_high"]
    assert clipped == pytest.approx(float((batch.mask & ~kept).sum() / batch.whole.n_tokens))


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
def test_the_discounted_sum_is_that_of_its_definition(width):
    x = torch.randn(2, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [[sum(0.9 ** (k - t) * row[k] for k in range(t, width)) for t in range(width)] for row in x]
    close(TokenBatch.discounted_sum(x, 0.9), expected)
