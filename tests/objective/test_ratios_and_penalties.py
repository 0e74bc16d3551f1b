"""Hölder's mean of ratios, and estimators of the KL divergence: by hand, and what they estimate (float64)."""

from itertools import product
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import TokenBatch
from policygrain.objective.penalty import Kl
from policygrain.objective.ratio import Holder

from ..support.batches import by_hand, close, few, tensor
from . import BY_HAND


def test_the_holder_mean_by_hand():
    """Ratios 2 and ½: arithmetic mean 1.25, harmonic 0.8, p = 2: √2.125."""
    batch = by_hand([[log(2.0), log(0.5), 9.0]], [1.0], [[1, 1, 0]])
    for power, expected in ((1, 1.25), (-1, 0.8), (2, 2.125**0.5), (0, 1.0)):
        close(Holder(power=power)(batch).exp(), [[expected] * 3])


@pytest.mark.parametrize(("settings", "expected"), BY_HAND["divergences"])
def test_estimators_of_the_divergence_by_hand(settings, expected):
    batch = by_hand([[0.2, -0.1]], [0.0])
    close(Kl(**settings)(batch.replace(ref_log_probs=batch.log_probs + tensor([0.5, -0.5]))), [expected])


def gradient_of(penalty, log_probs, reference, old, weights):
    """Σ_i weight_i Σ_t of the penalty's gradient by the log-probabilities."""
    leaf = log_probs.detach().clone().requires_grad_()
    batch = TokenBatch(leaf, old, torch.zeros(len(leaf)).double(), torch.ones_like(leaf), ref_log_probs=reference)
    return torch.autograd.grad((weights.unsqueeze(1) * penalty(batch)).sum(), leaf)[0]


@few
@given(seed=st.integers(0, 1000), off_policy=st.booleans())
def test_a_divergence_in_the_reward_has_its_true_gradient(seed, off_policy):
    """Over all responses of two tokens, of which each has a distribution: k1 in the reward is ∇ KL(π ‖ reference).

    On-policy. Off-policy it is with the ratio of the response, which for tokens that are independent of each other is
    E[r_t f_t] only where the other token is on-policy; so there one token has moved.
    """
    generator = torch.Generator().manual_seed(seed)
    logits, reference, moved = (torch.randn(2, 3, generator=generator).double() for _ in range(3))
    logits.requires_grad_()
    responses = torch.tensor([*product(range(3), repeat=2)])

    def of(values):
        return values.log_softmax(1)[torch.arange(2), responses]

    now, ref = of(logits), of(reference)
    old = torch.stack([of(moved)[:, 0], now[:, 1].detach()], 1) if off_policy else now.detach()

    def estimate(**settings):
        found = gradient_of(Kl(**settings), now, ref, old, old.sum(1).exp())
        return torch.autograd.grad(now, logits, found, retain_graph=True)[0]

    expected = torch.autograd.grad((now.sum(1).exp() * (now - ref).sum(1)).sum(), logits, retain_graph=True)[0]
    if off_policy:
        torch.testing.assert_close(estimate(estimator="k1", place="reward", times_ratio=True)[0], expected[0])
        return
    torch.testing.assert_close(estimate(estimator="k1", place="reward"), expected)
    # k1 in the loss has no gradient on average; k2 has that of each token's own divergence, and k3 that of the reverse.
    (reverse,) = torch.autograd.grad((ref.sum(1).exp() * (ref - now).sum(1)).sum(), logits, retain_graph=True)
    for estimator, wanted in (("k1", 0 * expected), ("k2", expected), ("k3", reverse)):
        torch.testing.assert_close(estimate(estimator=estimator), wanted)
