"""Each part of an objective, and whole losses with their metrics, worked out in plain numbers (float64)."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import method
from policygrain.objective.batch import TokenBatch
from policygrain.objective.clip import ClipCov, NoClip, PpoClip, Sapo, token_covariance
from policygrain.objective.method import CHOICES
from policygrain.objective.ratio import Block, Ratio
from policygrain.objective.terms import (
    EntropyBonus,
    Kl,
    KlCov,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
    TokenMean,
    entropy_drop_mask,
)

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


def test_without_a_clip_the_surrogate_is_ratio_times_advantage():
    out = NoClip()(tensor([5.0, 0.1]), by_hand([[0.0, 0.0]], [[2.0, -2.0]]))
    close(out.value, [[10.0, -0.2]])
    assert not out.low.any() and not out.high.any()


# Means over the four tokens: log-probabilities −1 + 0.5/4, advantages 1/4. Covariances, token by token:
LOG_RATIO, ADVANTAGES = [0.5, 0.2, -0.1, -0.1], [2.0, -1.0, 1.0, -1.0]
COVARIANCE = [(x - 0.125) * (y - 0.25) for x, y in zip(LOG_RATIO, ADVANTAGES, strict=True)]


def test_covariance_and_the_clip_by_it():
    four = by_hand([LOG_RATIO], [ADVANTAGES])
    close(token_covariance(four), [COVARIANCE])  # 0.656, −0.094, −0.169, 0.281
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


def test_vespo_multiplies_its_weight_with_the_correction_once():
    """With correction weights ½ and 1 the first response's W is halved; the loss is a mean over four tokens."""
    batch = by_hand([[0.2, 0.3], [0.2, 0.3]], [1.0, -1.0])
    corrected = batch.replace(rollout_weights=torch.tensor([[0.5, 1.0], [1.0, 1.0]], dtype=torch.float64))
    half, negative = (NAMES["W"] / 2) ** 2 * exp(3 * (1 - NAMES["W"] / 2)), NAMES["W"] ** 3 * exp(2 * (1 - NAMES["W"]))
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


# --- Aggregations ---


@pytest.mark.parametrize(
    ("aggregation", "long", "short"),
    [
        (TokenMean(), 1 / 4, 1 / 4),  # 4 tokens
        (SeqMeanTokenMean(), 1 / (2 * 3), 1 / (2 * 1)),  # 2 responses, of 3 tokens and of 1
        (SeqMeanTokenSumNorm(), 1 / (2 * 8), 1 / (2 * 8)),  # 2 responses, L_max = 8
    ],
)
def test_aggregation(aggregation, long, short):
    mask = [[1, 1, 1], [0, 0, 1], [0, 0, 0]]  # the last has no token in the loss and is not counted
    some = by_hand([[0.0] * 3] * 3, [1.0, 1.0, 1.0], mask, max_length=8)
    close(aggregation(some), [[long, long, long], [0, 0, short], [0, 0, 0]])


# --- Penalties ---


def test_kl_is_k3_to_the_chosen_reference():
    two = by_hand([[0.3, -0.2]], [1.0], ref_log_probs=tensor([-1.5, -1.0]))
    to_old = [exp(-0.3) + 0.3 - 1, exp(0.2) - 0.2 - 1]  # d = −ℓ
    to_initial = [exp(-1.5 + 0.7) + 0.8 - 1, exp(-1.0 + 1.2) - 0.2 - 1]  # log π_θ = −0.7, −1.2
    close(Kl(coefficient=0.1, reference="old")(two), [[0.1 * x for x in to_old]])
    close(Kl(coefficient=2.0, reference="initial")(two), [[2 * x for x in to_initial]])


def test_tepo_penalises_rewarded_tokens_that_lose_entropy():
    change = [-0.1, 0.1, -0.1, 0.1, 0.0]
    five = by_hand(
        [[0.3] * 5],
        [[1.0, 1.0, -1.0, -1.0, 1.0]],
        old_entropy=tensor([0.5] * 5),
        entropy=tensor([0.5 + x for x in change]),
    )
    value = exp(-0.3) + 0.3 - 1
    masked = Kl(reference="old", mask="positive_advantage_entropy_drop")(five)
    close(masked, [[value, 0, 0, 0, 0]])
    four = by_hand([LOG_RATIO], [ADVANTAGES])  # positive advantage: 1 and 3; positive covariance: 1 and 4
    by_covariance = entropy_drop_mask(four, "covariance")
    assert by_covariance.tolist() == [[True, False, False, False]]


def test_entropy_bonus():
    entropy = tensor([0.4, 0.8])
    close(EntropyBonus(coefficient=0.5)(by_hand([[0.0, 0.0]], [1.0], entropy=entropy)), [[-0.2, -0.4]])


def test_kl_cov_holds_the_top_share_by_covariance():
    four = by_hand([LOG_RATIO], [ADVANTAGES])  # by covariance: token 1, then token 4
    close(KlCov(coefficient=2.0, fraction=0.25)(four), [[2 * 0.5, 0, 0, 0]])
    close(KlCov(coefficient=2.0, fraction=0.5)(four), [[2 * 0.5, 0, 0, 2 * 0.1]])
    close(KlCov(coefficient=2.0, fraction=1e-4)(four), [[2 * 0.5, 0, 0, 0]])  # at least one
    close(KlCov(coefficient=2.0, fraction=0.25)(by_hand([LOG_RATIO], [0.0])), [[0, 0, 0, 0]])  # nothing is highest


# --- Whole losses ---

HALF, DOUBLE = log(0.5), log(2.0)
TWO = dict(log_ratio=[[DOUBLE, HALF, 0.0], [HALF, 0.0, 0.0]], advantages=[1.0, -1.0], mask=[[1, 1, 1], [1, 0, 0]])
# Ratios 2, ½, 1 | ½; clip at 0.8 and 1.2: surrogates 1.2 (clipped high), 0.5, 1 | −0.8 (clipped low).


@pytest.mark.parametrize(
    ("aggregation", "loss"),
    [
        ("token_mean", -(1.2 + 0.5 + 1 - 0.8) / 4),
        ("seq_mean_token_mean", -((1.2 + 0.5 + 1) / 3 - 0.8) / 2),
        ("seq_mean_token_sum_norm", -((1.2 + 0.5 + 1) / 5 - 0.8 / 5) / 2),
    ],
)
def test_loss(aggregation, loss):
    out = method("grpo", aggregation=aggregation).loss(by_hand(**TWO, max_length=5))
    close(out.loss, loss)
    assert out.metrics["loss"] == out.metrics["policy_loss"] == pytest.approx(loss)


def test_loss_with_rollout_correction():
    weights = tensor([0.5, 2.0, 1.0], [1.0, 9.0, 9.0])
    close(
        method("dapo", clip={"high": 0.2}).loss(by_hand(**TWO, rollout_weights=weights)).loss, -(0.6 + 1 + 1 - 0.8) / 4
    )


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
    by_covariance = {"name": "kl", "reference": "old", "mask": "positive_advantage_entropy_drop"}
    # Means: ℓ 0.125, Â 0.25; so the covariance is positive at tokens 1 and 4, and the first is rewarded.
    chosen = method("tepo", penalties=[by_covariance | {"entropy_signal": "covariance"}])
    rising = dict(old_entropy=tensor([1.0] * 4), entropy=tensor([2.0] * 4))
    assert (
        chosen.loss(by_hand([[0.5, 0.2, -0.1, -0.1]], [[2.0, -1.0, 1.0, -1.0]], **rising)).metrics["mask_share"]
        == 1 / 4
    )
