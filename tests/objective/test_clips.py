"""Clips other than PPO's and Clip-Cov's, by hand (float64); what they are equal to is in test_identities.py."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective.clip import DppoKl, DppoTv, Fipo, Gmpo, Likelihood, M2po, Sapo, Topr, Vespo

from ..support.batches import by_hand, close, few, fields

E = exp(1)  # old log-probabilities are -1, so π_old = 1/e = 0.368
MOVED = [log(0.55) + 1, log(0.45) + 1]  # to probabilities of 0.55 and 0.45, with divergences of 0.073 and 0.014
DIVERGENCE = log(1 / E / 0.55) / E + (1 - 1 / E) * log((1 - 1 / E) / 0.45)
W = exp(0.5)
TWICE = [log(2.0), log(0.5)]
NONE = [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("part", "log_ratio", "advantages", "value", "low", "high"),
    [
        # Weights 6 and 0.1 bounded to 5 and 0.5; log-probabilities −1 + ℓ.
        (
            Likelihood(low=0.5),
            [[log(6.0), log(0.1)]],
            [2.0],
            [[5 * 2 * (-1 + log(6.0)), 0.5 * 2 * (-1 + log(0.1))]],
            [[0, 1]],
            [[1, 0]],
        ),
        # Masked as by PPO's clip: 1.5 is too large with Â > 0, 0.5 too small with Â < 0.
        (
            Likelihood(low=0.8, cap=1.28, outside="mask"),
            [[log(1.5), log(0.5)]] * 2,
            [1.0, -1.0],
            [[0.0, 0.5 * (-1 + log(0.5))], [-1.5 * (-1 + log(1.5)), 0.0]],
            [[0, 0], [0, 1]],
            [[1, 0], [0, 0]],
        ),
        # Tokens are bounded before their mean: (0.4 + 0.1) / 2 and (−0.4 + 0.1) / 2.
        (
            Gmpo(),
            [[0.7, 0.1], [-0.7, 0.1]],
            [1.0, -2.0],
            [[exp(0.25)] * 2, [-2 * exp(-0.15)] * 2],
            [[0, 0], [1, 0]],
            [[1, 0], [0, 0]],
        ),
        (Sapo(), [[0.0]], [1.5], [[2 * 1.5]], [[0]], [[0]]),
        (Sapo(), [[0.0]], [-1.5], [[-1.5 * 2 / 1.05]], [[0]], [[0]]),
        # Masked where the probability rose too far with Â > 0, or fell too far with Â < 0.
        *(
            (part, [MOVED] * 2, [1.0, -1.0], [[0.0, 0.45 * E], [-0.55 * E, -0.45 * E]], NONE, [[1, 0], [0, 0]])
            for part in (DppoTv(), DppoKl(), DppoKl(high=DIVERGENCE - 1e-6))
        ),
        (DppoKl(high=DIVERGENCE + 1e-6), [MOVED], [1.0], [[0.55 * E, 0.45 * E]], [[0, 0]], [[0, 0]]),
        (DppoTv(), [[log(0.2) + 1]], [-1.0], [[0.0]], [[1]], [[0]]),
        (DppoTv(low=0.17), [[log(0.2) + 1]], [-1.0], [[-0.2 * E]], [[0]], [[0]]),
        # W = e^0.5 of the response: W² e^{3(1−W)} for Â ≥ 0, W³ e^{2(1−W)} below.
        (
            Vespo(),
            [[0.2, 0.3]] * 2,
            [1.0, -1.0],
            [[W**2 * exp(3 * (1 - W)) * x for x in (-0.8, -0.7)], [W**3 * exp(2 * (1 - W)) * x for x in (0.8, 0.7)]],
            NONE,
            NONE,
        ),
        # γ = ½: F = 0.1 + 0.2/2 and 0.2, f = e^F up to 1.2; a fall leaves f = 1 …
        (
            Fipo(half_life=1.0),
            [[0.1, 0.2], [-0.1, -0.2]],
            [1.0, -1.0],
            [[exp(0.1) * 1.2, exp(0.2) * 1.2], [-exp(-0.1), -exp(-0.2)]],
            NONE,
            NONE,
        ),
        # … or e^F where weights may fall below 1.
        (
            Fipo(half_life=1.0, least=0.5),
            [[-0.05, -0.1]],
            [-1.0],
            [[-exp(-0.05) * exp(-0.1), -exp(-0.1) * exp(-0.1)]],
            [[0, 0]],
            [[0, 0]],
        ),
        # r = e³ > 10 adds nothing to the sum before it, and is itself bounded by the dual clip: c Â.
        (Fipo(half_life=1.0), [[0.1, 3.0]], [-1.0], [[-exp(0.1) * exp(0.1), -10.0]], [[0, 0]], [[0, 1]]),
        # Ratios 2 and ½: weights 1 and 1 with Â > 0, 1 and ½ with Â < 0.
        (
            Topr(),
            [TWICE, TWICE],
            [3.0, -3.0],
            [[3 * (-1 + x) for x in TWICE], [-3 * (-1 + TWICE[0]), -1.5 * (-1 + TWICE[1])]],
            NONE,
            [[0, 0], [1, 0]],
        ),
        # Means of ℓ² are 0.0467 with all three, 0.025 without the last; tokens that move the other way never count.
        (
            M2po(),
            [[0.1, 0.2, 0.3, -1.0], [0.1, 1.0, 1.0, 1.0]],
            [1.0, -1.0],
            [[exp(0.1), exp(0.2), 0.0, exp(-1)], [-exp(0.1), -E, -E, -E]],
            [[0] * 4] * 2,
            [[0, 0, 1, 0], [0] * 4],
        ),
    ],
    ids=lambda x: x.label if hasattr(x, "label") else "",
)
def test_surrogates_by_hand(part, log_ratio, advantages, value, low, high):
    batch = by_hand(log_ratio, advantages)
    found = part(batch.log_ratio.exp(), batch)
    close(found.value, value)
    assert (found.low.int().tolist(), found.high.int().tolist()) == (low, high)


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
