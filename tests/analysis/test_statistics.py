"""Intervals and tests over seeds and problems, from numbers whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from policygrain.analysis.statistics import (
    average_interval,
    holm,
    interval,
    over_seeds,
    paired_difference,
    weigh,
)


def test_intervals_have_their_coverage() -> None:
    """Of 200 studies of 3 seeds × 150 problems, about 95% of the intervals hold the truth (few seeds: a bit fewer)."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        difficulty, skill = rng.normal(size=150), rng.normal(0.5, 0.1, size=(3, 1))
        p = 1 / (1 + np.exp(-(skill + difficulty)))
        result = interval((rng.random((3, 150)) < p).astype(float), replicates=400)
        truth = 0.6019  # E[sigmoid(N(0.5, 1.005))], by numerical integration
        held += result.low <= truth <= result.high
    assert 0.88 <= held / 200 <= 1.0


def test_pairing_removes_what_problems_share() -> None:
    rng = np.random.default_rng(1)
    shared = rng.random((3, 200)) < 0.5
    better = shared | (rng.random((3, 200)) < 0.1)
    paired = paired_difference(better.astype(float), shared.astype(float))
    assert paired.low > 0 and paired.high - paired.low < 0.09
    a, b = interval(better.astype(float)), interval(shared.astype(float))
    assert a.low < b.high, "unpaired intervals overlap here, which is why pairing matters"


def test_students_interval_and_averages() -> None:
    half = 4.3027 * 0.1 / 3**0.5  # Student's t for two degrees of freedom
    assert over_seeds(np.array([0.4, 0.5, 0.6])) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-4)
    ones, zeros = np.ones((2, 10)), np.zeros((2, 30))
    assert average_interval([ones, zeros]).mean == 0.5  # benchmarks count the same, not problems


def test_students_test_by_hand() -> None:
    e = weigh([1.0, 2.0, 3.0], "above")
    assert e.effect == 2
    # Standard deviation 1, standard error 1/√3; t = 2√3 on two degrees of freedom; half-width 4.3027/√3.
    assert (e.low, e.high) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)
    assert e.p_for == pytest.approx(stats.t.sf(2 * math.sqrt(3), 2))
    assert e.p_for + e.p_against == pytest.approx(1)
    # With spread 1 and effect 2, t(n−1) / √n falls below 2 at n = 4: 3.18 / 2 = 1.59; at 3 it is 2.48.
    assert e.seeds_needed == 4
    assert weigh([1.0, 2.0, 3.0], "below").p_for == pytest.approx(e.p_against)
    assert weigh([1.0, 2.0, 3.0], "above", margin=1.0).p_for == pytest.approx(stats.t.sf(math.sqrt(3), 2))
    assert weigh([-1.0, -2.0, -3.0], "apart").p_for == pytest.approx(2 * e.p_for)


def test_one_seed_decides_nothing_and_equal_seeds_everything() -> None:
    assert weigh([3.0], "above").p_for == 1 and weigh([3.0], "above").seeds_needed is None
    assert weigh([3.0, 3.0], "above").p_for == 0 and weigh([0.0, 0.0], "above").p_for == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_false_verdicts_are_as_rare_as_promised() -> None:
    """Under no effect at all, a ledger of ten one-sided comparisons is right to stay undecided 19 times of 20."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        p = holm([weigh(rng.normal(size=4), "above").p_for for _ in range(10)])
        wrong += min(p) < 0.05
    assert wrong / 400 < 0.08
