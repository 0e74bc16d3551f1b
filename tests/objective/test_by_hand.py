"""Each part of an objective on small cases, worked out here in plain numbers."""

from math import exp, log

import pytest
import torch

from policygrain.objective import aggregate, clip, penalty, ratio
from policygrain.objective.batch import TokenBatch
from policygrain.objective.ratio import Block

from ..support.batches import by_hand, close, tensor

a, b, c, d = 0.1, -0.2, 0.4, 0.3  # log-ratios: one response of three tokens, one of a single token


# --- Ratios ---


def block(batch, **params):
    """The block ratio with these parameters, and the schema's defaults for the others."""
    return function(Block(**params))(batch)


@pytest.mark.parametrize(
    ("function", "params", "first", "second"),
    [
        (ratio.token, {}, [a, b, c], d),
        (ratio.sequence, {}, [(a + b + c) / 3] * 3, d),
        (ratio.sequence, {"stop_gradient": True}, [(a + b + c) / 3] * 3, d),
        (ratio.prefix, {}, [a, a + b, a + b + c], d),
        (ratio.prefix, {"gradient": "own"}, [a, a + b, a + b + c], d),
        (ratio.product, {}, [a + b + c] * 3, d),
        (ratio.product, {"cap": 1.32}, [log(1.32)] * 3, log(1.32)),  # exp 0.3 = 1.35
        (ratio.none, {}, [0, 0, 0], 0),
        # Sliding windows; one that the response's end cuts short is renormalised to weights of sum 1 …
        (block, {"size": 2, "weights": "uniform"}, [(a + b) / 2, (b + c) / 2, c], d),
        (block, {"size": 2, "future_weight": 0.3}, [0.7 * a + 0.3 * b, 0.7 * b + 0.3 * c, c], d),
        (
            block,
            {"size": 3, "future_weight": 0.3},
            [0.7 * a + 0.15 * b + 0.15 * c, (0.7 * b + 0.15 * c) / 0.85, c],
            d,
        ),
        # … except a joint one, which is a shorter product.
        (block, {"size": 2, "weights": "joint"}, [a + b, b + c, c], d),
        # Tiles: {1, 2}, {3}.
        (block, {"size": 2, "layout": "tiled", "weights": "uniform"}, [(a + b) / 2, (a + b) / 2, c], d),
        (block, {"size": 2, "layout": "tiled", "weights": "joint"}, [a + b, a + b, c], d),
        (block, {"size": 2, "layout": "tiled"}, [0.7 * a + 0.3 * b, 0.3 * a + 0.7 * b, c], d),
        # Normalised edges change the gradient only.
        (block, {"size": 2, "future_weight": 0.3, "edges": "normalised"}, [0.7 * a + 0.3 * b, 0.7 * b + 0.3 * c, c], d),
    ],
)
def test_ratio(function, params, first, second):
    log_r = function(off_by(tensor([a, b, c], [d, 0, 0])), **params)
    close(log_r[0], first)
    close(log_r[1, 0], second)


def test_the_block_ratio_of_prediction_heads():
    """K = 3: of the first token heads foresee two more, of the second one, of the third and of a lone token none."""
    batch = off_by(tensor([a, b, c], [d, 0, 0]))
    x, y = 0.05, -0.15  # what the heads' log-probabilities have changed by, summed over the heads that have a token
    batch = batch.replace(future_log_probs=tensor([x, y, 0], [0, 0, 0]), old_future_log_probs=torch.zeros(2, 3))
    log_r = block(batch, size=3, future_weight=0.3, future="mtp_heads")
    close(log_r[0], [0.7 * a + 0.15 * x, (0.7 * b + 0.15 * y) / 0.85, c])
    close(log_r[1, 0], d)
    with pytest.raises(ValueError, match="must be sliding"):
        ratio.block(batch, **{**HEADS, "layout": "tiled"})
    with pytest.raises(ValueError, match="needs future_log_probs"):
        ratio.block(off_by(batch.log_ratio), **HEADS)


def weights_of(function, log_ratio, **params):
    """∂/∂ℓ_k Σ_t r_t: the weight of each token's ∇ log π where the advantage is 1. [batch, tokens]."""
    log_ratio = log_ratio.clone().requires_grad_()
    batch = off_by(log_ratio)
    return torch.autograd.grad((function(batch, **params).exp() * batch.mask).sum(), log_ratio)[0]


A, B, C, D = (exp(x) for x in (a, b, c, d))


@pytest.mark.parametrize(
    ("function", "params", "first", "second"),
    [
        (ratio.token, {}, [A, B, C], D),
        (ratio.prefix, {}, [A + A * B + A * B * C, A * B + A * B * C, A * B * C], D),
        (ratio.prefix, {"gradient": "own"}, [A, A * B, A * B * C], D),
        (ratio.product, {}, [A * B * C] * 3, D),
        (ratio.product, {"cap": 1.32}, [1.32] * 3, 1.32),
        # Joint tiles {1, 2}, {3}: each token of a tile counts its product once per token of the tile …
        (block, {"size": 2, "layout": "tiled", "weights": "joint"}, [2 * A * B, 2 * A * B, C], D),
        # … and with normalised edges once.
        (block, {"size": 2, "layout": "tiled", "weights": "joint", "edges": "normalised"}, [A * B, A * B, C], D),
        # Sliding joint windows {1, 2}, {2, 3}, {3}: tokens 2 and 3 are in two of them.
        (
            block,
            {"size": 2, "weights": "joint", "edges": "normalised"},
            [A * B, (A * B + B * C) / 2, (B * C + C) / 2],
            D,
        ),
    ],
)
def test_weights_in_the_gradient(function, params, first, second):
    weights = weights_of(function, tensor([a, b, c], [d, 0, 0]), **params)
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
        value = block(batch.replace(log_probs=batch.old_log_probs + x), size=5, future_weight=0.3, edges=edges).exp()
        return torch.autograd.grad(value.sum(), x)[0]

    close(weights("as_published"), [published])
    close(weights("normalised"), [[1.0] * 6])


def test_prediction_heads_have_no_normalised_edges():
    with pytest.raises(ValueError, match="not those of mtp_heads"):
        ratio.block(off_by(torch.zeros(2, 3)), **HEADS, edges="normalised")
    with pytest.raises(ValueError, match="needs future: backbone"):
        Block(future="mtp_heads", edges="normalised")


def test_a_cap_below_one_would_truncate_on_policy():
    with pytest.raises(ValueError, match="at least 1"):
        ratio.product(off_by(torch.zeros(2, 3)), cap=0.5)


HEADS = {"size": 5, "layout": "sliding", "weights": "future", "future_weight": 0.3, "future": "mtp_heads"}


def off_by(log_ratio):
    """A response of three tokens and one of a single token, off by this much."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    return TokenBatch(log_ratio, torch.zeros_like(log_ratio), torch.zeros_like(log_ratio), mask)


# --- Clips ---


@pytest.mark.parametrize(
    ("r", "advantage", "value", "slope", "low", "high"),
    [
        (1.1, 2.0, 2.2, 2.0, 0, 0),
        (1.5, 2.0, 1.28 * 2, 0.0, 0, 1),  # good and already more likely
        (0.5, 2.0, 1.0, 2.0, 0, 0),
        (1.5, -2.0, -3.0, -2.0, 0, 0),
        (0.5, -2.0, 0.8 * -2, 0.0, 1, 0),  # bad and already less likely
        (4.0, -2.0, 3.0 * -2, 0.0, 0, 1),  # the dual clip at 3
        (4.0, 0.0, 0.0, 0.0, 0, 0),
    ],
)
def test_clip(r, advantage, value, slope, low, high):
    r = tensor([r]).requires_grad_()
    out = clip.ppo(r, by_hand([[0.0]], [advantage]), low=0.2, high=0.28, dual=3.0)
    close(out.value, [[value]])
    close(torch.autograd.grad(out.value.sum(), r)[0], [[slope]])
    assert (out.low.item(), out.high.item()) == (low, high)


def test_without_a_clip_the_surrogate_is_ratio_times_advantage():
    out = clip.none(tensor([5.0, 0.1]), by_hand([[0.0, 0.0]], [[2.0, -2.0]]))
    close(out.value, [[10.0, -0.2]])
    assert not out.low.any() and not out.high.any()


# Means over the four tokens: log-probabilities −1 + 0.5/4, advantages 1/4. Covariances, token by token:
LOG_RATIO, ADVANTAGES = [0.5, 0.2, -0.1, -0.1], [2.0, -1.0, 1.0, -1.0]
COVARIANCE = [(x - 0.125) * (y - 0.25) for x, y in zip(LOG_RATIO, ADVANTAGES, strict=True)]


def test_covariance_and_the_clip_by_it():
    four = by_hand([LOG_RATIO], [ADVANTAGES])
    close(clip.token_covariance(four), [COVARIANCE])  # 0.656, −0.094, −0.169, 0.281
    r = four.log_ratio.exp().requires_grad_()
    # `fraction` 1 takes every candidate: token 4. Token 1 has covariance enough but is clipped already.
    out = clip.clip_cov(r, four, low=0.2, high=0.2, fraction=1.0, cov_low=0.2, cov_high=0.7)
    close(out.value, [[1.2 * 2, -exp(0.2), exp(-0.1), -exp(-0.1)]])
    close(torch.autograd.grad(out.value.sum(), r)[0], [[0.0, -1.0, 1.0, 0.0]])
    assert out.high.tolist() == [[True, False, False, False]] and not out.low.any()
    untouched = clip.clip_cov(r, four, low=0.2, high=0.2, fraction=0.0, cov_low=0.2, cov_high=0.7)
    close(torch.autograd.grad(untouched.value.sum(), r)[0], [[0.0, -1.0, 1.0, -1.0]])


def test_clip_cov_takes_its_fraction_of_the_tokens():
    torch.manual_seed(0)
    many = by_hand([[0.5, -0.5] * 5000], [[1.0, -1.0] * 5000])  # covariance (±0.5)(±1) = 0.5 everywhere
    r = many.log_ratio.exp().requires_grad_()
    out = clip.clip_cov(r, many, low=9.0, high=9.0, fraction=0.1, cov_low=0.4, cov_high=0.6)
    detached = (torch.autograd.grad(out.value.sum(), r)[0] == 0).sum().item()
    assert detached == pytest.approx(0.1 * 10_000, abs=4 * (10_000 * 0.1 * 0.9) ** 0.5)


# --- Aggregations ---


@pytest.mark.parametrize(
    ("function", "long", "short"),
    [
        (aggregate.token_mean, 1 / 4, 1 / 4),  # 4 tokens
        (aggregate.seq_mean_token_mean, 1 / (2 * 3), 1 / (2 * 1)),  # 2 responses, of 3 tokens and of 1
        (aggregate.seq_mean_token_sum_norm, 1 / (2 * 8), 1 / (2 * 8)),  # 2 responses, L_max = 8
    ],
)
def test_aggregation(function, long, short):
    mask = [[1, 1, 1], [0, 0, 1], [0, 0, 0]]  # the last has no token in the loss and is not counted
    some = by_hand([[0.0] * 3] * 3, [1.0, 1.0, 1.0], mask, max_length=8)
    close(function(some), [[long, long, long], [0, 0, short], [0, 0, 0]])


# --- Penalties ---


def test_kl_is_k3_to_the_chosen_reference():
    two = by_hand([[0.3, -0.2]], [1.0], ref_log_probs=tensor([-1.5, -1.0]))
    to_old = [exp(-0.3) + 0.3 - 1, exp(0.2) - 0.2 - 1]  # d = −ℓ
    to_initial = [exp(-1.5 + 0.7) + 0.8 - 1, exp(-1.0 + 1.2) - 0.2 - 1]  # log π_θ = −0.7, −1.2
    close(penalty.kl(two, coefficient=0.1, reference="old"), [[0.1 * x for x in to_old]])
    close(penalty.kl(two, coefficient=2.0, reference="initial"), [[2 * x for x in to_initial]])


def test_tepo_penalises_rewarded_tokens_that_lose_entropy():
    change = [-0.1, 0.1, -0.1, 0.1, 0.0]
    five = by_hand(
        [[0.3] * 5],
        [[1.0, 1.0, -1.0, -1.0, 1.0]],
        old_entropy=tensor([0.5] * 5),
        entropy=tensor([0.5 + x for x in change]),
    )
    value = exp(-0.3) + 0.3 - 1
    masked = penalty.kl(five, reference="old", mask="positive_advantage_entropy_drop")
    close(masked, [[value, 0, 0, 0, 0]])
    four = by_hand([LOG_RATIO], [ADVANTAGES])  # positive advantage: 1 and 3; positive covariance: 1 and 4
    by_covariance = penalty.entropy_drop_mask(four, "covariance")
    assert by_covariance.tolist() == [[True, False, False, False]]


def test_entropy_bonus():
    entropy = tensor([0.4, 0.8])
    close(penalty.entropy_bonus(by_hand([[0.0, 0.0]], [1.0], entropy=entropy), coefficient=0.5), [[-0.2, -0.4]])


def test_kl_cov_holds_the_top_share_by_covariance():
    four = by_hand([LOG_RATIO], [ADVANTAGES])  # by covariance: token 1, then token 4
    close(penalty.kl_cov(four, coefficient=2.0, fraction=0.25), [[2 * 0.5, 0, 0, 0]])
    close(penalty.kl_cov(four, coefficient=2.0, fraction=0.5), [[2 * 0.5, 0, 0, 2 * 0.1]])
    close(penalty.kl_cov(four, coefficient=2.0, fraction=1e-4), [[2 * 0.5, 0, 0, 0]])  # at least one
