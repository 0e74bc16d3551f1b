"""Intervals, differences, verdicts and seeds: numbers by hand, properties of all scores, and simulated coverage."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from policygrain.analysis import accuracy, difference
from policygrain.analysis.statistics import (
    PROBLEMS,
    SEEDS,
    holm,
    median,
    over_seeds,
    pooled_spread,
    seeds_to_show,
    student,
)
from policygrain.errors import UserError

from ..conftest import ROOT
from ..support.files import load_script

Scores = NDArray[np.float64]
DRAWS = 2000


@st.composite
def benchmarks(draw: st.DrawFn, count: int = 1) -> list[list[Scores]]:
    """``count`` arms on the same benchmarks, seeds and problems, scores of up to four responses."""
    seeds = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    scores = st.sampled_from((0.0, 0.25, 0.5, 1.0))
    return [[draw(arrays(float, (seeds, size), elements=scores)) for size in sizes] for _ in range(count)]


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_students_interval_by_hand():
    half = 4.3027 * 0.1 / 3**0.5  # Student's t for two degrees of freedom
    assert over_seeds([0.4, 0.5, 0.6]) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-4)
    found = student([1.0, 2.0, 3.0])
    # Standard deviation 1, standard error 1/√3; t = 2√3 on two degrees of freedom.
    assert found.p == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2)) and found.spread == 1
    assert found.above(1.0) == pytest.approx(stats.t.sf(math.sqrt(3), 2)) and found.below(2.0) == 0.5


def test_nothing_right_is_not_known_to_be_zero():
    """0 of 60: Wilson's upper limit is z² / (60 + z²) = 3.84 / 63.84 = 6.0%."""
    z2 = 1.95996**2
    for scores in (np.zeros((3, 20)), np.zeros((1, 60))):
        found = accuracy([scores])
        assert (found.mean, found.low) == (0, 0) and found.high == pytest.approx(z2 / (60 + z2), rel=0.02)
    found = accuracy([np.ones((3, 20))])
    assert (found.mean, found.high) == (1, 1) and found.low == pytest.approx(60 / (60 + z2), rel=0.02)
    same = difference([np.zeros((3, 20))], [np.zeros((3, 20))])
    assert same.low < 0 < same.high and same.p == 1
    assert accuracy([np.ones((2, 10)), np.zeros((2, 30))]).mean == 0.5, "benchmarks count the same, not problems"


def test_a_single_seed_has_an_interval_over_problems_and_says_so():
    """Wilson's interval for 30 of 60 is 50 ± 12.2 points; Student's quantile on 59 degrees of freedom is 2.00."""
    scores = np.array([[1.0] * 30 + [0.0] * 30])
    found = accuracy([scores])
    assert (found.n, found.unit) == (60, PROBLEMS)
    assert (found.low, found.high) == pytest.approx((0.376, 0.624), abs=0.003)
    assert difference([scores], [1 - scores]).unit == PROBLEMS
    assert accuracy([np.repeat(scores, 2, axis=0)]).unit == SEEDS


# ---- properties -----------------------------------------------------------------------------------------------------


@given(benchmarks())
def test_an_accuracy_lies_in_its_interval_and_mirrors(arms):
    (scores,) = arms
    found, mirrored = accuracy(scores), accuracy([1 - s for s in scores])
    assert 0 <= found.low <= found.mean + 1e-12 and found.mean - 1e-12 <= found.high <= 1
    assert found.low < found.high
    assert (found.low, found.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-9)


@given(benchmarks(count=2))
def test_a_difference_lies_in_its_interval_and_mirrors(arms):
    found, turned = difference(*arms), difference(*arms[::-1])
    assert -1 <= found.low <= found.mean + 1e-12 and found.mean - 1e-12 <= found.high <= 1
    assert (turned.mean, turned.low, turned.high) == pytest.approx((-found.mean, -found.high, -found.low), abs=1e-6)
    assert turned.p == pytest.approx(found.p, abs=1e-6)


@given(benchmarks(count=2), st.floats(-0.95, 0.95))
def test_a_value_is_in_the_interval_where_its_test_is_not_significant(arms, value):
    found = difference(*arms)
    if min(abs(value - found.low), abs(value - found.high)) > 1e-6:
        tested = 2 * min(found.above(value), found.below(value))
        assert (found.low < value < found.high) == (tested > 0.05)
    assert (found.low <= 0 <= found.high) == (found.p >= 0.05) or min(abs(found.low), abs(found.high)) < 1e-6


@given(benchmarks(count=2), st.floats(0.1, 100))
def test_a_difference_in_another_unit_is_the_same_difference(arms, factor):
    found = difference(*arms)
    scaled = found.times(factor)
    assert (scaled.mean, scaled.low) == pytest.approx((factor * found.mean, factor * found.low))
    assert scaled.p == found.p and scaled.above(0.1 * factor) == pytest.approx(found.above(0.1))


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_scores_that_are_none_are_refused():
    good = np.ones((2, 3))
    for scores, message in {
        "empty": ([], "list over benchmarks"),
        "no problem": ([np.ones((2, 0))], "none of them empty"),
        "percent": ([good * 50], "between 0 and 1"),
        "nan": ([good * np.nan], "between 0 and 1"),
        "seeds": ([good, np.ones((3, 3))], "equally many seeds .*: 2, 3"),
    }.values():
        with pytest.raises(UserError, match=message):
            accuracy(scores)
    with pytest.raises(UserError, match="not 2×3 and 3×3"):
        difference([good], [np.ones((3, 3))])


# ---- seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arms", [2, 6])
def test_the_interval_of_a_spread_contains_the_true_one_in_19_of_20_studies(arms):
    """Four seeds of ``arms`` arms, all but the first compared with it; a difference of two has a spread of √2."""
    rng, inside = np.random.default_rng(1), 0
    for _ in range(2000):
        values = rng.normal(size=(arms, 4))
        spread = pooled_spread([student(arm - values[0]) for arm in values[1:]])
        inside += spread.low < math.sqrt(2) < spread.high
    assert 0.93 < inside / 2000 < 0.98


@pytest.mark.parametrize(("sd", "comparisons"), [(1.0, 1), (4.0, 27)])
def test_with_the_planned_seeds_four_of_five_studies_show_the_direction(sd, comparisons):
    n, rng = seeds_to_show(2.0, sd, comparisons), np.random.default_rng(5)
    assert n is not None and n == seeds_to_show(4.0, 2 * sd, comparisons)
    assert seeds_to_show(1.0, 1000.0, comparisons) is None and seeds_to_show(1.0, 0.0, comparisons) == 2

    def shown(seeds: int) -> float:
        found = (student(rng.normal(2.0, sd, seeds)) for _ in range(2000))
        return sum(2 * d.above(0.0) < 0.05 / comparisons for d in found) / 2000

    assert shown(n) > 0.8 - 3 * 0.4 / math.sqrt(2000) and shown(n - 1) < 0.8 + 3 * 0.4 / math.sqrt(2000)


def test_the_sign_test_s_interval_by_hand():
    """Of eight, one outside on each side: P(0 or 8 of 8 on one side) = 2/256; with one more it would be 18/256."""
    assert median([-1.0] * 7 + [math.inf]) == (-1.0, -1.0, math.inf)
    assert median(range(8)) == (3.5, 0, 7) and median(range(9)) == (4, 1, 7)
    assert median([1.0, 2.0, 0.0]) == (1.0, -math.inf, math.inf), "three exclude nothing"


def test_holm_s_correction_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


LOWEST, HIGHEST = 0.94, 0.965
ERROR = 4 * math.sqrt(0.05 * 0.95 / DRAWS)  # four standard errors of a simulated coverage: two points


CELLS = [
    *itertools.product((2, 3, 5, 8, 16), (2, 20, 50, 95), (0.0, 0.25), (None, 2)),
    *itertools.product((2, 16), (0, 0.5, 99.5, 100), (0.0,), (None,)),  # at the edges, at least as often
]


@pytest.fixture(scope="module")
def simulation():
    """benchmarks/coverage.py, which is no part of the package."""
    return load_script(ROOT / "benchmarks/coverage.py")


@pytest.mark.parametrize(("seeds", "percent", "sd", "change"), CELLS)
def test_intervals_hold_the_truth_as_often_as_they_say(seeds, percent, sd, change, simulation):
    cell = simulation.Cell(seeds, (60,), percent, sd, change)
    found = simulation.coverage(cell, DRAWS)
    assert found >= LOWEST - ERROR and cell.edge >= (not 1 < percent < 99)
    assert cell.edge or found <= HIGHEST + ERROR


def test_the_interval_of_a_single_seed_is_about_its_problems():
    """200 problems drawn anew each time; the accuracy over all problems is 30%."""
    rng = np.random.default_rng(1)
    found = [accuracy([(rng.random((1, 200)) < 0.3).astype(float)]) for _ in range(DRAWS)]
    assert abs(np.mean([f.low <= 0.3 <= f.high for f in found]) - 0.95) < ERROR
