"""Each part of an objective, and whole losses with their metrics, worked out in plain numbers (float64)."""

import statistics
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import method
from policygrain.objective import Sampler
from policygrain.objective.batch import TokenBatch, turn_numbers
from policygrain.objective.clip import ClipCov, PpoClip, Sapo, token_covariance
from policygrain.objective.loss import effective_sample_share, rollout_weights
from policygrain.objective.method import CHOICES
from policygrain.objective.ratio import Block, GroupExpectation, Ratio
from policygrain.objective.terms import DrGrpo, Grpo, Rloo

from ..support.batches import by_hand, close, few, fields, tensor
from . import BY_HAND, NAMES

a, b, c, d = (NAMES[name] for name in "abcd")  # log-ratios: one response of three tokens, one of a single token


# --- Ratios ---


@pytest.mark.parametrize(("ratio", "first", "second"), BY_HAND["ratios"])
def test_ratio(ratio, first, second):
    log_r = Ratio.choices[ratio["name"]](**ratio)(off_by(tensor([a, b, c], [d, 0, 0])))
    close(log_r[0], first)
    close(log_r[1, 0], second)


def test_the_block_ratio_of_prediction_heads():
    """K = 3: of the first token heads foresee two more, of the second one, of the third and of a lone token none."""
    batch = off_by(tensor([a, b, c], [d, 0, 0]))
    x, y = 0.05, -0.15  # what the heads' log-probabilities have changed by, summed over the heads that have a token
    batch = batch.replace(future_log_probs=tensor([x, y, 0], [0, 0, 0]), old_future_log_probs=torch.zeros(2, 3))
    heads = Block(size=3, future_weight=0.3, future="mtp_heads")
    log_r = heads(batch)
    close(log_r[0], [0.7 * a + 0.15 * x, (0.7 * b + 0.15 * y) / 0.85, c])
    close(log_r[1, 0], d)
    with pytest.raises(ValueError, match="needs future_log_probs"):
        heads(off_by(batch.log_ratio))


@pytest.mark.parametrize(("ratio", "first", "second"), BY_HAND["gradients_of_ratios"])
def test_weights_in_the_gradient(ratio, first, second):
    """∂/∂ℓ_k Σ_t r_t: the weight of each token's ∇ log π where the advantage is 1."""
    log_ratio = tensor([a, b, c], [d, 0, 0]).requires_grad_()
    batch = off_by(log_ratio)
    log_r = Ratio.choices[ratio["name"]](**ratio)(batch)
    weights = torch.autograd.grad((log_r.exp() * batch.mask).sum(), log_ratio)[0]
    close(weights[0], first)
    close(weights[1, 0], second)


def test_coverage_of_a_response_of_six_tokens_by_mpo_s_blocks():
    """K = 5, φ = 0.3: β = 0.7 and four times 0.075; on-policy, so that every ratio is 1."""
    six = tensor([0.0] * 6)
    # Windows begin at each token; those at tokens 3, 4, 5, 6 have 4, 3, 2, 1 tokens left and weights of this sum.
    s3, s4, s5, s6 = 0.925, 0.85, 0.775, 0.7
    published = [
        0.7,
        0.075 + 0.7,
        2 * 0.075 + 0.7 / s3,
        2 * 0.075 + 0.075 / s3 + 0.7 / s4,
        2 * 0.075 + 0.075 / s3 + 0.075 / s4 + 0.7 / s5,
        0.075 + 0.075 / s3 + 0.075 / s4 + 0.075 / s5 + 0.7 / s6,  # = 1.34
    ]
    assert published[-1] == pytest.approx(1.34, abs=0.005)

    def weights(edges):
        batch = by_hand([[0.0] * 6], [1.0])
        x = six.clone().requires_grad_()
        value = Block(edges=edges)(batch.replace(log_probs=batch.old_log_probs + x)).exp()
        return torch.autograd.grad(value.sum(), x)[0]

    close(weights("as_published"), [published])
    close(weights("normalised"), [[1.0] * 6])


def test_the_ratio_to_the_expectation_of_the_group():
    """q = e^−1 and e^−2, E_q[q] = Σq²/Σq; p of the first is e^(−1+0.3)."""
    old = torch.tensor([[-1.0, -1.0], [-3.0, -1.0], [-2.0, -2.0]], dtype=torch.float64)
    moved = torch.tensor([[0.4, 0.2], [0.0, 0.0], [0.1, 0.1]], dtype=torch.float64)
    batch = TokenBatch(old + moved, old, torch.ones(3).double(), torch.ones(3, 2), groups=torch.tensor([7, 7, 2]))
    q = exp(-1), exp(-2)
    expected = log((q[0] ** 2 + q[1] ** 2) / (q[0] + q[1]))
    close(GroupExpectation()(batch), [[-0.7 - expected] * 2, [-2 - expected] * 2, [0.1] * 2])


@pytest.mark.parametrize(("weights", "expected"), BY_HAND["turns"])
def test_turns_are_blocks_of_unequal_sizes(weights, expected):
    """Turns of two tokens and of one, with tool output between them."""
    batch = by_hand([[0.1, 0.3, 9.0, 0.5, 9.0]], [1.0], [[1, 1, 0, 1, 0]])
    close(Block(layout="turns", weights=weights)(batch)[batch.mask], expected)


def test_turns_are_numbered_from_the_first():
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    assert turn_numbers(mask).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0] * 5, [0] * 5]


def off_by(log_ratio):
    """A response of three tokens and one of a single token, off by this much."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    return TokenBatch(log_ratio, torch.zeros_like(log_ratio), torch.zeros_like(log_ratio), mask)


# --- Clips ---


@pytest.mark.parametrize(("r", "advantage", "value", "slope", "low", "high"), BY_HAND["ppo"])
def test_clip(r, advantage, value, slope, low, high):
    r = tensor([r]).requires_grad_()
    out = PpoClip(low=0.2, high=0.28, dual=3.0)(r, by_hand([[0.0]], [advantage]))
    close(out.value, [[value]])
    close(torch.autograd.grad(out.value.sum(), r)[0], [[slope]])
    assert (out.low.item(), out.high.item()) == (low, high)


# Means over the four tokens: log-probabilities −1 + 0.5/4, advantages 1/4.
LOG_RATIO, ADVANTAGES = [0.5, 0.2, -0.1, -0.1], [2.0, -1.0, 1.0, -1.0]


def test_covariance_and_the_clip_by_it():
    four = by_hand([LOG_RATIO], [ADVANTAGES])
    close(token_covariance(four), [[0.375 * 1.75, 0.075 * -1.25, -0.225 * 0.75, -0.225 * -1.25]])
    r = four.log_ratio.exp().requires_grad_()
    # `fraction` 1 takes every candidate: token 4. Token 1 has covariance enough but is clipped already.
    out = ClipCov(low=0.2, high=0.2, fraction=1.0, cov_low=0.2, cov_high=0.7)(r, four)
    close(out.value, [[1.2 * 2, -exp(0.2), exp(-0.1), -exp(-0.1)]])
    close(torch.autograd.grad(out.value.sum(), r)[0], [[0.0, -1.0, 1.0, 0.0]])
    assert out.high.tolist() == [[True, False, False, False]] and not out.low.any()
    untouched = ClipCov(low=0.2, high=0.2, fraction=0.0, cov_low=0.2, cov_high=0.7)(r, four)
    close(torch.autograd.grad(untouched.value.sum(), r)[0], [[0.0, -1.0, 1.0, -1.0]])


def test_clip_cov_takes_its_fraction_of_the_tokens():
    torch.manual_seed(0)
    many = by_hand([[0.5, -0.5] * 5000], [[1.0, -1.0] * 5000])  # covariance (±0.5)(±1) = 0.5 everywhere
    r = many.log_ratio.exp().requires_grad_()
    out = ClipCov(low=1.0, high=9.0, fraction=0.1, cov_low=0.4, cov_high=0.6)(r, many)
    detached = (torch.autograd.grad(out.value.sum(), r)[0] == 0).sum().item()
    assert detached == pytest.approx(0.1 * 10_000, abs=4 * (10_000 * 0.1 * 0.9) ** 0.5)


# --- Other clips ---


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


# --- Advantages, aggregations, penalties ---


@pytest.mark.parametrize("function", (Grpo(), DrGrpo(), Rloo()), ids=lambda part: part.name)
def test_advantage(function):
    group, other = [1.0, 0.0, 0.5, 1.0], [2.0, -1.0, 0.0, 0.0]

    def expected(r, rest):
        from_mean = r - statistics.mean([r, *rest])
        values = {"dr_grpo": from_mean, "rloo": r - statistics.mean(rest)}
        return values.get(function.name, from_mean / (statistics.stdev([r, *rest]) + 1e-6))

    found = [[expected(r, g[:i] + g[i + 1 :]) for i, r in enumerate(g)] for g in (group, other)]
    torch.testing.assert_close(function(tensor(group, other)), tensor(*found), rtol=1e-12, atol=1e-14)
    for right in (torch.tensor([[1, 0, 0, 1]]), torch.tensor([[True, False, False, True]])):
        torch.testing.assert_close(function(right), function(right.float()), rtol=0, atol=0)


@pytest.mark.parametrize(("aggregation", "long", "short"), BY_HAND["aggregations"])
def test_aggregation(aggregation, long, short):
    mask = [[1, 1, 1], [0, 0, 1], [0, 0, 0]]
    some = by_hand([[0.0] * 3] * 3, [1.0, 1.0, 1.0], mask, max_length=8)
    close(CHOICES["aggregation"][aggregation]()(some), [[long, long, long], [0, 0, short], [0, 0, 0]])


def batch_of(log_ratio, advantages, mask=None, **more):
    return by_hand(log_ratio, advantages, mask, **{k: tensor(*x) if k != "max_length" else x for k, x in more.items()})


@pytest.mark.parametrize(("penalty", "given", "value"), BY_HAND["penalties"])
def test_penalty(penalty, given, value):
    close(CHOICES["penalties"][penalty["name"]](**penalty)(batch_of(**given)), value)


# --- Corrections ---

# Two tokens of a response, d = 1.2 and −0.4, and one of another, d = 0.1; the last is padding.
DIFFERENCE = torch.tensor([[1.2, -0.4], [0.1, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1], [1, 0]])


@pytest.mark.parametrize(("settings", "expected"), BY_HAND["rollout_weights"])
def test_weights_by_grain(settings, expected):
    close(rollout_weights(DIFFERENCE, torch.zeros(2, 2), MASK, Sampler(**settings)), expected)
    unscored = torch.full((2, 2), torch.nan)  # by the engine
    assert rollout_weights(DIFFERENCE, unscored, MASK, Sampler(**settings)).isfinite().all()


def test_the_effective_share_is_that_of_equal_weights():
    """(3 + 1)² / (2 (9 + 1)) = 0.8; equal weights: 1; one of two dropped: ½."""
    mask = torch.tensor([[1, 1, 0]])
    for values, share in (([3.0, 1.0, 7.0], 0.8), ([2.0, 2.0, 0.0], 1.0), ([5.0, 0.0, 1.0], 0.5), ([0.0] * 3, 0.0)):
        assert effective_sample_share(torch.tensor([values]), mask) == pytest.approx(share)


# --- Whole losses ---

HALF, DOUBLE = log(0.5), log(2.0)
TWO = dict(log_ratio=[[DOUBLE, HALF, 0.0], [HALF, 0.0, 0.0]], advantages=[1.0, -1.0], mask=[[1, 1, 1], [1, 0, 0]])
# Ratios 2, ½, 1 | ½; clip at 0.8 and 1.2: surrogates 1.2 (clipped high), 0.5, 1 | −0.8 (clipped low).


@pytest.mark.parametrize(("name", "changes", "given", "loss"), BY_HAND["losses"])
def test_loss(name, changes, given, loss):
    out = method(name, **changes).loss(batch_of(**given))
    close(out.loss, loss)
    assert out.metrics["loss"] == pytest.approx(loss)


def test_metrics():
    entropies = dict(old_entropy=tensor([1.0] * 3, [1.0] * 3), entropy=tensor([0.6, 1.2, 0.8], [0.2, 9, 9]))
    reference = tensor([-1.0] * 3, [-1.0] * 3)  # the old policy
    out = method("grpo", penalties=[{"name": "entropy_bonus", "coefficient": 0.1}]).loss(
        by_hand(**TWO, **entropies, ref_log_probs=reference)
    )
    bonus = 0.1 * ((0.6 + 1.2 + 0.8) / 3 + 0.2) / 2
    assert out.metrics == pytest.approx(
        {
            "ratio_mean": (2 + 0.5 + 1 + 0.5) / 4,
            "ratio_variance": ((2 - 1) ** 2 + (0.5 - 1) ** 2 + 0 + (0.5 - 1) ** 2) / 4,
            "ratio_max": 2.0,
            "effective_sample_share": (2 + 0.5 + 1 + 0.5) ** 2 / (4 * (4 + 0.25 + 1 + 0.25)),
            # Unclipped: tokens 2 and 3 with Â = 1, weights 1/3 of a half; token 4 with Â = −1 is clipped.
            "positive_gradient_share": 1.0,
            "clip_fraction_low": 1 / 4,
            "clip_fraction_high": 1 / 4,
            # KL(old ‖ θ) from samples of old: r − 1 − log r; KL(θ ‖ reference): 1/r − 1 + log r.
            "kl_old": ((1 - DOUBLE) + 2 * (-0.5 - HALF) + 0) / 4,
            "kl_initial": ((-0.5 + DOUBLE) + 2 * (1 + HALF) + 0) / 4,
            "entropy": (0.6 + 1.2 + 0.8 + 0.2) / 4,
            "mask_share": 2 / 4,  # tokens 1 and 3: rewarded, and entropy fell
            "policy_loss": -((1.2 + 0.5 + 1) / 3 - 0.8) / 2,
            "penalty": -bonus,
            "loss": -((1.2 + 0.5 + 1) / 3 - 0.8) / 2 - bonus,
        }
    )


def test_mask_share_is_that_of_the_mask_in_use():
    """By covariance one token of four is masked, although the entropy of all has risen."""
    by_covariance = {"name": "kl", "reference": "old", "mask": "positive_advantage_entropy_drop"}
    chosen = method("tepo", penalties=[by_covariance | {"entropy_signal": "covariance"}])
    rising = dict(old_entropy=tensor([1.0] * 4), entropy=tensor([2.0] * 4))
    assert chosen.loss(by_hand([LOG_RATIO], [ADVANTAGES], **rising)).metrics["mask_share"] == 1 / 4
