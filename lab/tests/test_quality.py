"""Squared means without noise and jackknife intervals, by hand and by simulation."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from policygrain_lab.measured import quality
from policygrain_lab.measured.quality import Estimates, Mean, Truth, Updates, interval, squared_mean


def test_a_squared_mean_by_hand():
    # X = (1, 0), (3, 0), (2, 0): |ΣX|² = 36, Σ|X|² = 14, so (36 − 14) / 6 = 11/3 = the mean of 1·3, 1·2 and 3·2.
    assert squared_mean(36.0, 14.0, 3) == pytest.approx((3 + 2 + 6) / 3)


def test_a_squared_mean_has_no_noise_in_it_on_average():
    draws = np.random.default_rng(0).normal(0.3, 1.0, (20_000, 8, 5))  # |E X|² = 5 · 0.09 = 0.45
    total, squares = np.square(draws.sum(1)).sum(1), np.square(draws).sum((1, 2))
    found = squared_mean(total, squares, 8)
    assert found.mean() == pytest.approx(0.45, abs=4 * found.std() / 20_000**0.5)
    assert np.square(draws.mean(1)).sum(1).mean() == pytest.approx(0.45 + 5 / 8, rel=0.02)  # the plain one


def test_products_in_chunks(monkeypatch):
    a, b = torch.randn(3, 10, generator=torch.Generator().manual_seed(0)), torch.ones(2, 10)
    monkeypatch.setattr(quality, "CHUNK", 4)
    assert quality.products(a, b) == pytest.approx((a.double() @ b.double().T).numpy())


def test_means_without_each_block_by_hand():
    blocks = np.array([0, 0, 1, 2])
    found = Mean(np.array([1.0, 3.0, 5.0, 7.0]), blocks)
    assert (found.value, found.replicates.tolist()) == (4.0, [6.0, 11 / 3, 3.0])
    some = Mean(np.array([1.0, np.nan, 5.0, 7.0]), blocks, np.array([True, False, True, True]))
    assert (some.value, some.replicates.tolist()) == (13 / 3, [6.0, 4.0, 3.0])


def test_the_interval_of_a_mean_is_students():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = Mean(values, np.arange(4))
    value, low, high = interval(found.value, found.replicates)
    half = 3.182446 * values.std(ddof=1) / 2  # t of 3 degrees of freedom
    assert (value, low, high) == pytest.approx((4.0, 4 - half, 4 + half), rel=1e-6)
    # Two independent sources: their variances add up.
    wider = interval(found.value, found.replicates, found.replicates)
    assert wider[2] - 4 == pytest.approx(half * 2**0.5, rel=1e-6)


def test_as_many_blocks_as_memory_has_room_for():
    assert quality.blocks_for(18, 86_000, 100) == quality.BLOCKS
    assert quality.blocks_for(18, 86_000, 12) == 12
    large = quality.blocks_for(2, 10**7, 100)
    assert large < quality.BLOCKS and 4 * large * 10**7 * 4 <= quality.MEMORY
    assert quality.blocks_for(18, 10**9, 100) == 3


def updates_of(truths: dict[str, Truth], batches: int, blocks: int, updates: Callable[[int], list[Tensor]]) -> Updates:
    """``updates``: number of a batch → the updates by the estimators from it. A fifth of the tokens are clipped."""
    found = Updates(truths, batches, blocks)
    metrics = {"ratio_mean": 1.0, "ratio_variance": 0.0, "clip_fraction_low": 0.1, "clip_fraction_high": 0.1}
    for number in range(batches):
        found.add(number, Estimates([*updates(number)], [metrics] * len(truths), tokens=10))
    return found


def made_updates(signal: float, batches: int = 200, seed: int = 0, truth_noise: float = 0.2) -> Updates:
    """Two estimators in 30 dimensions whose mean is ``signal`` and 2 · ``signal`` times (1, 1, …) with unit noise.

    The second also has as large a mean in a direction orthogonal to the first's: a bias cosine of √½. The true gradient
    is (1, 1, …).
    """
    generator = torch.Generator().manual_seed(seed)
    ones, other = torch.ones(30), torch.tensor([1.0, -1.0]).repeat(15)
    truth = Truth(ones + truth_noise * torch.randn(20, 30, generator=generator))

    def updates(_: int) -> list[Tensor]:
        noise = torch.randn(30, generator=generator)
        return [signal * ones + noise, 2 * signal * (ones + other) + noise]

    return updates_of({"good": truth, "biased": truth}, batches, 20, updates)


def test_quality_of_estimators_whose_quality_is_known():
    found = made_updates(signal=0.5)
    good, determined = found.measures("good", "good")
    biased, _ = found.measures("biased", "good")
    assert determined and good["cosine_difference"] == (0.0, 0.0, 0.0)
    for key, *values in (("bias_cosine", 1.0, 0.5**0.5), ("length", 0.5, 1.0), ("snr", 30 * 0.25 / 30, 2.0)):
        for measured, value in zip((good, biased), values, strict=True):
            assert measured[key][1] < value < measured[key][2], key
    # One batch has a cosine of about 1 / √(1 + 1/SNR).
    assert good["cosine"][0] == pytest.approx((1 + 1 / 0.25) ** -0.5, abs=0.03)
    assert good["norm"][0] == pytest.approx((30 * 1.25) ** 0.5, rel=0.03)
    assert biased["cosine_difference"][0] == pytest.approx(biased["cosine"][0] - good["cosine"][0])
    assert good["clip_fraction"] == pytest.approx(0.2) and good["effective_sample_share"] == pytest.approx(1)


def test_intervals_cover_the_truth_in_95_of_100_measurements():
    inside = {"bias_cosine": 0, "length": 0, "snr": 0}
    truth = {"bias_cosine": 1.0, "length": 0.5, "snr": 0.25}
    for seed in range(100):
        good, _ = made_updates(0.5, batches=60, seed=seed).measures("good", "good")
        for key, value in truth.items():
            inside[key] += good[key][1] <= value <= good[key][2]
    assert all(88 <= count <= 100 for count in inside.values()), inside


def test_an_update_of_pure_noise_has_no_direction():
    for seed in range(4):
        found, determined = made_updates(0.0, seed=seed).measures("good", "good")
        low, high = found["bias_cosine"][1:]
        assert low <= 0 <= high
        assert determined == ((low, high) != quality.UNDETERMINED)
        assert found["length"][1] < 0 < found["length"][2] and found["snr"][1] < 0 < found["snr"][2]


def test_a_truth_of_pure_noise_is_none_or_weak():
    for seed in range(6):
        truth = Truth(torch.randn(20, 50, generator=torch.Generator().manual_seed(seed)))
        assert not truth.known or truth.weak
    assert not Truth(torch.zeros(3, 5)).known
    found = made_updates(1.0).truths["good"]
    assert found.known and not found.weak


def test_each_estimator_is_compared_with_the_gradient_of_its_own_aggregation():
    """Two estimators, each equal to its own gradient and orthogonal to the other's, have no bias and no difference."""
    ones, other = torch.ones(30), torch.tensor([2.0, -2.0]).repeat(15)
    truths = {"a": Truth(ones.repeat(4, 1)), "b": Truth(other.repeat(4, 1))}
    found = updates_of(truths, 8, 4, lambda _: [ones, other])
    for name in truths:
        values, _ = found.measures(name, "a")
        assert values["bias_cosine"][0] == pytest.approx(1) and values["length"][0] == pytest.approx(1)
        assert values["cosine"][0] == pytest.approx(1) and values["cosine_difference"] == pytest.approx((0, 0, 0))


def test_an_update_whose_square_is_too_small_for_float32_has_a_direction():
    """Products of ratios over long responses may be of this size."""
    tiny = [torch.full((6,), 1e-30)]
    truth = {"tiny": Truth(torch.ones(12, 6))}
    found = updates_of(truth, 8, 4, lambda number: tiny if number else [torch.zeros(6)])
    measures, _ = found.measures("tiny", "tiny")
    assert measures["cosine"][0] == pytest.approx(1), "of the batches with an update"
