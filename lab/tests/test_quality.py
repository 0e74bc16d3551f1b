"""Squared means without noise and jackknife intervals, by hand and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policygrain_lab.measured import quality
from policygrain_lab.measured.quality import (
    BLOCKS,
    MEMORY,
    UNDETERMINED,
    Estimates,
    Mean,
    Truth,
    Updates,
    blocks_for,
    interval,
    products,
    squared_mean,
)


def test_a_squared_mean_by_hand() -> None:
    # X = (1, 0), (3, 0), (2, 0): |ΣX|² = 36, Σ|X|² = 14, so (36 − 14) / 6 = 11/3 = the mean of 1·3, 1·2 and 3·2.
    assert squared_mean(36.0, 14.0, 3) == pytest.approx((3 + 2 + 6) / 3)


def test_a_squared_mean_has_no_noise_in_it_on_average() -> None:
    draws = np.random.default_rng(0).normal(0.3, 1.0, (20_000, 8, 5))  # |E X|² = 5 · 0.09 = 0.45
    total, squares = np.square(draws.sum(1)).sum(1), np.square(draws).sum((1, 2))
    found = squared_mean(total, squares, 8)
    assert found.mean() == pytest.approx(0.45, abs=4 * found.std() / 20_000**0.5)
    assert np.square(draws.mean(1)).sum(1).mean() == pytest.approx(0.45 + 5 / 8, rel=0.02)  # the plain one


def test_products_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(3, 10, generator=torch.Generator().manual_seed(0)), torch.ones(2, 10)
    monkeypatch.setattr(quality, "CHUNK", 4)
    assert products(a, b) == pytest.approx((a.double() @ b.double().T).numpy())


def test_means_without_each_block_by_hand() -> None:
    blocks = np.array([0, 0, 1, 2])
    found = Mean(np.array([1.0, 3.0, 5.0, 7.0]), blocks)
    assert (found.value, found.replicates.tolist()) == (4.0, [6.0, 11 / 3, 3.0])
    some = Mean(np.array([1.0, np.nan, 5.0, 7.0]), blocks, np.array([True, False, True, True]))
    assert (some.value, some.replicates.tolist()) == (13 / 3, [6.0, 4.0, 3.0])


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = Mean(values, np.arange(4))
    value, low, high = interval(found.value, found.replicates)
    half = 3.182446 * values.std(ddof=1) / 2  # t of 3 degrees of freedom
    assert (value, low, high) == pytest.approx((4.0, 4 - half, 4 + half), rel=1e-6)
    # Two independent sources: their variances add up.
    wider = interval(found.value, found.replicates, found.replicates)
    assert wider[2] - 4 == pytest.approx(half * 2**0.5, rel=1e-6)


def test_as_many_blocks_as_memory_has_room_for() -> None:
    assert blocks_for(18, 86_000, 100) == BLOCKS
    assert blocks_for(18, 86_000, 12) == 12
    large = blocks_for(2, 10**7, 100)
    assert large < BLOCKS and 4 * large * 10**7 * 4 <= MEMORY
    assert blocks_for(18, 10**9, 100) == 3


def made_updates(signal: float, batches: int = 200, seed: int = 0, truth_noise: float = 0.2) -> Updates:
    """Two estimators in 30 dimensions whose mean is ``signal`` and 2 · ``signal`` times (1, 1, …) with unit noise.

    The second also has as large a mean in a direction orthogonal to the first's: a bias cosine of √½. The true gradient
    is (1, 1, …).
    """
    generator = torch.Generator().manual_seed(seed)
    ones, other = torch.ones(30), torch.tensor([1.0, -1.0]).repeat(15)
    truth = Truth(ones + truth_noise * torch.randn(20, 30, generator=generator))
    found = Updates({"good": truth, "biased": truth}, batches, 20)
    metrics = {"ratio_mean": 1.0, "ratio_variance": 0.0, "clip_fraction_low": 0.1, "clip_fraction_high": 0.1}
    for number in range(batches):
        noise = torch.randn(30, generator=generator)
        updates: list[torch.Tensor | None] = [signal * ones + noise, 2 * signal * (ones + other) + noise]
        found.add(number, Estimates(updates, [metrics] * 2, tokens=10))
    return found


def test_quality_of_estimators_whose_quality_is_known() -> None:
    found = made_updates(signal=0.5)
    good, determined = found.measures("good", "good")
    biased, _ = found.measures("biased", "good")
    assert determined and good["cosine_difference"] == (0.0, 0.0, 0.0)
    truth = {"bias_cosine": 1.0, "length": 0.5, "snr": 30 * 0.25 / 30}
    for key, value in truth.items():
        assert good[key][1] < value < good[key][2], key
    for key, value in {"bias_cosine": 0.5**0.5, "length": 1.0, "snr": 2.0}.items():
        assert biased[key][1] < value < biased[key][2], key
    # One batch has a cosine of about 1 / √(1 + 1/SNR).
    assert good["cosine"][0] == pytest.approx((1 + 1 / 0.25) ** -0.5, abs=0.03)
    assert good["norm"][0] == pytest.approx((30 * 1.25) ** 0.5, rel=0.03)
    assert biased["cosine_difference"][0] == pytest.approx(biased["cosine"][0] - good["cosine"][0])
    assert good["clip_fraction"] == pytest.approx(0.2) and good["effective_sample_share"] == pytest.approx(1)


def test_intervals_cover_the_truth_in_95_of_100_measurements() -> None:
    inside = {"bias_cosine": 0, "length": 0, "snr": 0}
    truth = {"bias_cosine": 1.0, "length": 0.5, "snr": 0.25}
    for seed in range(100):
        good, _ = made_updates(0.5, batches=60, seed=seed).measures("good", "good")
        for key, value in truth.items():
            inside[key] += good[key][1] <= value <= good[key][2]
    assert all(88 <= count <= 100 for count in inside.values()), inside


def test_an_update_of_pure_noise_has_no_direction() -> None:
    for seed in range(4):
        found, determined = made_updates(0.0, seed=seed).measures("good", "good")
        low, high = found["bias_cosine"][1:]
        assert low <= 0 <= high
        assert determined == ((low, high) != UNDETERMINED)
        assert found["length"][1] < 0 < found["length"][2] and found["snr"][1] < 0 < found["snr"][2]


def test_a_truth_of_pure_noise_is_none_or_weak() -> None:
    for seed in range(6):
        truth = Truth(torch.randn(20, 50, generator=torch.Generator().manual_seed(seed)))
        assert not truth.known or truth.weak
    assert not Truth(torch.zeros(3, 5)).known
    found = made_updates(1.0).truths["good"]
    assert found.known and not found.weak


def test_each_estimator_is_compared_with_the_gradient_of_its_own_aggregation() -> None:
    """Two estimators, each equal to its own gradient and orthogonal to the other's, have no bias and no difference."""
    ones, other = torch.ones(30), torch.tensor([2.0, -2.0]).repeat(15)
    truths = {"a": Truth(ones.repeat(4, 1)), "b": Truth(other.repeat(4, 1))}
    found = Updates(truths, 8, 4)
    metrics = {"ratio_mean": 1.0, "ratio_variance": 0.0, "clip_fraction_low": 0.0, "clip_fraction_high": 0.0}
    for number in range(8):
        found.add(number, Estimates([ones, other], [metrics] * 2, tokens=10))
    for name in truths:
        values, _ = found.measures(name, "a")
        assert values["bias_cosine"][0] == pytest.approx(1) and values["length"][0] == pytest.approx(1)
        assert values["cosine"][0] == pytest.approx(1) and values["cosine_difference"] == pytest.approx((0, 0, 0))


def test_an_update_whose_square_is_too_small_for_float32_has_a_direction() -> None:
    """Products of ratios over long responses may be of this size."""
    metrics = {"ratio_mean": 1.0, "ratio_variance": 0.0, "clip_fraction_low": 0.0, "clip_fraction_high": 0.0}
    truth = Truth(torch.ones(12, 6))
    found = Updates({"tiny": truth}, 8, 4)
    for number in range(8):
        updates: list[torch.Tensor | None] = [torch.full((6,), 1e-30) if number else torch.zeros(6)]
        found.add(number, Estimates(updates, [metrics], tokens=10))
    measures, _ = found.measures("tiny", "tiny")
    assert measures["cosine"][0] == pytest.approx(1), "of the batches with an update"
