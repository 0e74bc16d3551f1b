"""Tests against 0 and a published size, their correction, verdicts, and the seeds that they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from policygrain.analysis import difference
from policygrain.analysis.statistics import Difference, ranked, student
from policygrain.analysis.verdicts import PValues, decide, distance_to_decide, effect_tests, holm, seeds_needed

SMALLER = "smaller than published"
Test = Callable[[list[float]], Difference]
numbers = st.lists(st.floats(-9, 9), min_size=2, max_size=9)
tests_of: list[Test] = [student, ranked]


def test_tests_against_0_and_a_size_by_hand() -> None:
    """Mean 2, standard error 1/√3: the distance to 0 is 2√3 standard errors, to a size of 3 it is √3."""
    d = student([1.0, 2.0, 3.0])
    p = effect_tests(d, "above", 3.0)
    assert p.holds == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2)), "two directions are looked at"
    assert p.opposite == 1 and p.smaller == pytest.approx(stats.t.sf(math.sqrt(3), 2))
    assert effect_tests(d, "above").smaller == 1, "the paper gives no size"
    for mirrored in (d, student([-1.0, -2.0, -3.0])):
        assert effect_tests(mirrored, "apart") == pytest.approx((p.holds, 1, 1))


@given(numbers, st.floats(0.1, 5), st.sampled_from(tests_of))
def test_mirrored_data_have_mirrored_verdicts(values: list[float], size: float, test: Test) -> None:
    p, mirrored = (effect_tests(test(v), "above", size) for v in (values, [-v for v in values]))
    assert mirrored.holds == pytest.approx(p.opposite) and mirrored.opposite == pytest.approx(p.holds)
    assert effect_tests(test([-v for v in values]), "below", size) == pytest.approx(p)
    assert max(p.holds, p.opposite) >= 0.99 or math.isclose(p.holds + p.opposite, 2, abs_tol=0.02)
    assert p.smaller <= p.opposite + 1e-12, "what is on the other side is smaller than any size"


@given(numbers, numbers)
def test_evidence_for_a_side_grows_with_every_value(values: list[float], more: list[float]) -> None:
    larger = [v + abs(m) for v, m in zip(values, more, strict=False)] + values[len(more) :]
    assert ranked(larger).above(0.0) <= ranked(values).above(0.0) and ranked(larger).mean >= ranked(values).mean


def test_the_sign_test_by_hand() -> None:
    """Seven of eight times are below the other arm's, one run never arrives: P(7 or more of 8) = 9/256."""
    d = ranked([-1.0] * 7 + [math.inf])
    assert d.below(0.0) == pytest.approx(9 / 256) and d.above(0.0) == pytest.approx(1 - 1 / 256)
    assert (d.mean, d.low, d.high) == (-1.0, -1.0, math.inf), "the median, and the interval from the first to the last"
    assert ranked([1.0, 2.0, 0.0]).above(0.0) == pytest.approx(1 / 4), "equal ones are left out"
    assert ranked([0.0, 0.0]).above(0.0) == ranked([0.0, 0.0]).below(0.0) == 1


def test_what_is_no_number_and_a_single_seed_decide_nothing() -> None:
    """However many problems a single seed has."""
    one = difference([np.ones((1, 500))], [np.zeros((1, 500))])
    assert one.p < 1e-6, "about these problems there is no doubt"
    for d in (student([math.nan, 1.0, 2.0]), one, student([3.0])):
        assert effect_tests(d, "above", 0.02) == effect_tests(d, "below", 0.02) == (1, 1, 1)
    assert seeds_needed(one, 1.0) is None


def test_verdicts_and_their_correction_by_hand() -> None:
    assert decide(PValues(0.01, 0.99, 0.01)) == "holds"
    assert decide(PValues(0.99, 0.01, 0.01)) == "opposite"
    assert decide(PValues(0.99, 0.2, 0.02)) == SMALLER
    assert decide(PValues(0.06, 0.94, 0.94)) == "inconclusive"
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.data())
def test_holm_rejects_no_less_where_evidence_grows(p: list[float], data: st.DataObject) -> None:
    stronger = [v * data.draw(st.floats(0, 1)) for v in p]
    assert all(s <= c + 1e-12 for s, c in zip(holm(stronger), holm(p), strict=True))


def test_seeds_needed_would_decide() -> None:
    """With spread 1 and distance 2, the two-sided t(n − 1) / √n falls below 2 at n = 4: 3.18 / √4 = 1.59."""
    d = student([3.0, 4.0, 2.0])
    assert d.spread == 1 and seeds_needed(d, 2.0) == 4
    assert (seeds_needed(d, 2.0, comparisons=18) or 0) > 4 and seeds_needed(d, 0.0) is None
    assert distance_to_decide(3.0, "above", None) == distance_to_decide(-3.0, "above", None) == 3
    assert distance_to_decide(0.5, "above", 2.0) == 1.5, "to be smaller than 2 is nearer than to be larger than 0"
    assert distance_to_decide(-0.5, "below", 2.0) == 1.5


@pytest.mark.parametrize("test", tests_of)
def test_false_verdicts_are_as_rare_as_promised(test: Test) -> None:
    """Of ledgers of six comparisons at most 5% have a direction where there is none, or call the published size small.

    Skewed values, of which the sign test knows the median, as those of the time to converge.
    """
    rng, limit = np.random.default_rng(0), 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    shape = (400, 6, 10)  # studies, comparisons, seeds
    noise = rng.normal(size=shape) if test is student else np.expm1(rng.normal(size=shape))

    def share(values: np.ndarray, verdicts: set[str]) -> float:
        """How often any of the comparisons of a study has one of the verdicts."""
        found = 0
        for study in values:
            tests = [effect_tests(test(list(v)), "above", 1.0) for v in study]
            p = [PValues(*row) for row in zip(*(holm(column) for column in zip(*tests, strict=True)), strict=True)]
            found += bool(({decide(one) for one in p} | {SMALLER for one in p if one.smaller < 0.05}) & verdicts)
        return found / len(values)

    assert share(noise, {"holds", "opposite"}) <= limit
    assert share(1.0 + noise, {SMALLER, "opposite"}) <= limit
    assert share(noise + 3.0, {"holds"}) > 0.5, "and they can be right"
