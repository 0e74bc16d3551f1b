"""Whole losses and their metrics on one small case, worked out here in plain numbers."""

from math import log

import pytest

from policygrain import method

from ..support.batches import by_hand, close, tensor

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
