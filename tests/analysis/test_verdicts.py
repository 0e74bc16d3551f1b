"""Tests against a margin, their correction, and verdicts."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from policygrain.analysis import difference
from policygrain.analysis.statistics import student
from policygrain.analysis.verdicts import (
    PValues,
    Side,
    Verdict,
    combine,
    corrected,
    decide,
    holm,
    margin_tests,
    seeds_needed,
)

SIDES: tuple[Side, ...] = get_args(Side)
TIE: Verdict = "no difference larger than the margin"


def test_tests_against_a_margin_by_hand() -> None:
    """Mean 2, standard error 1/√3: the distance to 1 is √3 standard errors, to −1 it is 3√3."""
    d = student([1.0, 2.0, 3.0])
    p = margin_tests(d, "above", 1.0)
    assert p.supports == pytest.approx(stats.t.sf(math.sqrt(3), 2)) and p.refutes == pytest.approx(1 - p.supports)
    assert p.ties == pytest.approx(p.refutes), "of its two tests the weaker one counts"
    below = margin_tests(d, "below", 1.0)
    assert below.supports == pytest.approx(stats.t.cdf(3 * math.sqrt(3), 2))
    assert margin_tests(d, "apart", 1.0).supports == pytest.approx(2 * p.supports)
    assert margin_tests(student([-1.0, -2.0, -3.0]), "apart", 1.0) == pytest.approx(margin_tests(d, "apart", 1.0))


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=9), st.sampled_from(SIDES), st.floats(0.1, 5))
def test_no_comparison_is_both_supported_and_not(values: list[float], side: Side, margin: float) -> None:
    p = margin_tests(student(values), side, margin)
    assert min(p.supports, p.refutes) >= 0 and p.supports + min(p.refutes, p.ties) >= 0.99
    assert side == "apart" or p.ties >= p.refutes - 1e-12, "what is smaller than the margin on both sides is refuted"


def test_a_single_seed_decides_nothing_however_many_problems() -> None:
    d = difference([np.ones((1, 500))], [np.zeros((1, 500))])
    assert d.p < 1e-6, "about these problems there is no doubt"
    assert margin_tests(d, "above", 0.02) == (1, 1, 1) and seeds_needed(d, "above", 0.02) is None
    assert margin_tests(student([3.0]), "above", 1.0) == (1, 1, 1)


def test_verdicts() -> None:
    assert decide(PValues(0.01, 0.99, 0.99)) == "supported"
    assert decide(PValues(0.99, 0.01, 0.2)) == "not supported"
    assert decide(PValues(0.99, 0.01, 0.02)) == TIE
    assert decide(PValues(0.06, 0.94, 0.94)) == "undecided"


def test_a_claim_needs_all_its_comparisons_and_falls_with_one() -> None:
    assert combine(["supported", "supported"]) == "supported"
    assert combine(["supported", "undecided"]) == "undecided"
    assert combine(["supported", TIE, "undecided"]) == TIE
    assert combine(["supported", TIE, "not supported"]) == "not supported"


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
    assert corrected([PValues(0.01, 0.5, 0.2), PValues(0.03, 0.9, 0.04)]) == [
        pytest.approx((0.02, 1, 0.2)),
        pytest.approx((0.03, 1, 0.08)),
    ]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.data())
def test_holm_rejects_no_less_where_evidence_grows(p: list[float], data: st.DataObject) -> None:
    stronger = [v * data.draw(st.floats(0, 1)) for v in p]
    assert all(s <= c + 1e-12 for s, c in zip(holm(stronger), holm(p), strict=True))


def test_seeds_needed_would_decide() -> None:
    """With spread 1 and distance 2, the one-sided t(n − 1) / √n falls below 2 at n = 3: 2.92 / √3 = 1.69."""
    d = student([3.0, 4.0, 2.0])
    assert d.spread == 1 and seeds_needed(d, "above", 1.0) == 4, "three were not enough, or nobody would ask"
    assert seeds_needed(student([1.5, 1.0, 2.0]), "above", 1.0) == 5  # spread and distance 1/2: t(4) / √5 = 0.95 < 1
    assert (seeds_needed(d, "above", 1.0, comparisons=18) or 0) > 4
    assert seeds_needed(student([0.0, 2.0, 1.0]), "above", 1.0) is None, "at the margin itself nothing decides"


def test_false_verdicts_are_as_rare_as_promised() -> None:
    """At the margin exactly, 19 of 20 ledgers of ten comparisons support nothing, and 19 of 20 refute nothing."""
    rng = np.random.default_rng(0)
    wrong = np.zeros(3)
    for _ in range(400):
        tests = corrected([margin_tests(student(1 + rng.normal(size=4)), "above", 1.0) for _ in range(10)])
        wrong += np.min(tests, axis=0) < 0.05
    assert (wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)).all()


def test_a_tie_ends_as_one_with_enough_seeds() -> None:
    """Differences of −1 and 1 in turn against a margin of 1: undecided with 4 seeds, a tie with 40."""
    found = [decide(margin_tests(student([-1.0, 1.0] * (n // 2)), "above", 1.0)) for n in (4, 40)]
    assert found == ["undecided", TIE]
