"""Sequential tests: by hand against the integral that defines them, false positives, and verdicts that stay."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from policygrain.analysis.sequential import (
    Evidence,
    Region,
    e_value,
    sequential_seeds_needed,
    settle,
)
from policygrain.analysis.statistics import student
from policygrain.analysis.verdicts import Side, seeds_needed
from policygrain.errors import UserError

VALUES = st.lists(st.floats(-9, 9), min_size=1, max_size=20)
SIDES: tuple[Side, ...] = get_args(Side)
SEEDS, DRAWS, LEVEL = 40, 2000, 0.05


def mixture(values: list[float], prior: float) -> float:
    """The definition: the half-normal mean of the ratio of noncentral to central t densities, by quadrature."""
    n = len(values)
    t = np.mean(values) / np.std(values, ddof=1) * math.sqrt(n)

    def integrand(effect: float) -> float:
        weight = 2 * stats.norm.pdf(effect, scale=math.sqrt(prior))
        return weight * stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) / stats.t.pdf(t, n - 1)

    return float(integrate.quad(integrand, 0, 12 * math.sqrt(prior))[0])


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [0.3, -0.2, 0.5, 0.1], [-1.0, -2.0, -1.5, 0.2, -0.9]])
@pytest.mark.parametrize("prior", [0.25, 1.0])
def test_the_closed_form_is_the_mixture(values: list[float], prior: float) -> None:
    assert e_value(values, 0.0, "above", prior) == pytest.approx(mixture(values, prior), rel=1e-4)


def test_e_values_by_hand() -> None:
    """One seed shows a sign only: 2 P(T ≤ 1) = 1.5 with one degree of freedom; none shows nothing."""
    assert e_value([3.0], 0.0, "above") == pytest.approx(1.5) and e_value([3.0], 0.0, "below") == pytest.approx(0.5)
    assert e_value([], 0.0, "above") == 1
    assert e_value([3.0], 0.0, "apart") == pytest.approx(1)
    with pytest.raises(UserError, match="nothing lies within"):
        e_value([1.0], 0.0, "within")


@given(VALUES, st.floats(0.1, 5), st.floats(0.1, 50))
def test_only_the_ratio_to_the_margin_matters(values: list[float], margin: float, scale: float) -> None:
    for side in get_args(Region):
        e = e_value(values, margin, side)
        assert e_value([scale * v for v in values], scale * margin, side) == pytest.approx(e, rel=1e-6)


@given(VALUES, st.floats(0.1, 5))
def test_sides_mirror(values: list[float], margin: float) -> None:
    turned = [-v for v in values]
    assert e_value(values, margin, "above") == pytest.approx(e_value(turned, margin, "below"))
    assert e_value(values, margin, "within") == pytest.approx(e_value(turned, margin, "within"))


@functools.cache
def paths(effect: float) -> np.ndarray:
    """e-values of "above 0" after each seed [draws, seeds], for normal differences of this standardised effect."""
    x = effect + np.random.default_rng(1).standard_normal((DRAWS // 4, SEEDS))
    return np.array([[e_value(row[: n + 1], 0.0, "above") for n in range(SEEDS)] for row in x])


@pytest.mark.parametrize("effect", [0.0, -0.1, -0.5])
def test_optional_stopping_gives_no_more_false_positives(effect: float) -> None:
    """Of 500 studies that look after each of 40 seeds and stop at the first 1/α, at most α stop (plus 3 errors)."""
    stopped = (paths(effect).max(1) >= 1 / LEVEL).mean()
    assert stopped <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / len(paths(effect)))


def test_a_fixed_test_would_have_more() -> None:
    """What the sequential form is for: looking after each seed, the t-test at 5% is wrong in about a quarter."""
    x = np.random.default_rng(1).standard_normal((500, SEEDS))
    n = np.arange(3, SEEDS + 1)
    t = np.array([[row[:k].mean() / row[:k].std(ddof=1) * math.sqrt(k) for k in n] for row in x])
    assert (t > stats.t.ppf(0.95, n - 1)).any(1).mean() > 0.15


def test_an_effect_of_one_standard_deviation_is_found() -> None:
    reached = paths(1.0) >= 1 / LEVEL
    assert reached.any(1).mean() > 0.95 and np.median(reached.argmax(1) + 1) < 20


@settings(deadline=None)
@given(st.lists(st.floats(-3, 9), min_size=1, max_size=30), st.sampled_from(SIDES), st.integers(0, 2**32 - 1))
def test_a_verdict_stays_when_seeds_are_appended(values: list[float], side: Side, seed: int) -> None:
    """Whatever comes later: here, seeds that say the opposite."""
    ledger = [Evidence(side, 1.0, values), Evidence("above", 1.0)]
    settle(ledger)
    first, seeds = ledger[0].verdict, ledger[0].seeds
    p = ledger[0].p_values()
    later = np.random.default_rng(seed).normal(-np.sign(np.sum(values)) * 5, 1, 20)
    for value in later:
        ledger[0].append([value])
        settle(ledger)
        assert all(after <= before for before, after in zip(p, ledger[0].p_values(), strict=True))
        if first != "undecided":
            assert (ledger[0].verdict, ledger[0].seeds) == (first, seeds)


def test_evidence_by_parts_is_evidence_at_once() -> None:
    values = np.random.default_rng(5).normal(3, 1, 12).tolist()
    whole, parts = Evidence("above", 1.0, values), Evidence("above", 1.0, values[:5])
    parts.append(values[5:])
    settle([whole])
    settle([parts])
    assert whole == parts and whole.verdict == "supported" and whole.seeds == 12


@pytest.mark.parametrize(
    ("mean", "side", "verdict"),
    [
        (3.0, "above", "supported"),
        (-3.0, "below", "supported"),
        (-3.0, "apart", "supported"),
        (-3.0, "above", "not supported"),
        (0.0, "above", "no difference larger than the margin"),
        (0.0, "apart", "no difference larger than the margin"),
        (1.0, "above", "undecided"),
    ],
)
def test_three_verdicts_of_sixty_seeds(mean: float, side: Side, verdict: str) -> None:
    evidence = Evidence(side, 1.0, np.random.default_rng(6).normal(mean, 1, 60).tolist())
    settle([evidence])
    assert evidence.verdict == verdict


def test_a_ledger_makes_few_false_verdicts_under_optional_stopping() -> None:
    """Five comparisons at the margin exactly, settled after each of 20 seeds: no verdict in 95 of 100 ledgers."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(60):
        ledger = [Evidence("above", 1.0) for _ in range(5)]
        for _ in range(20):
            for evidence in ledger:
                evidence.append([rng.normal(1, 1)])
            settle(ledger)
        wrong += any(e.verdict == "supported" for e in ledger)
    assert wrong / 60 <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / 60)


def test_seeds_needed_would_decide_and_are_more_than_those_of_a_fixed_test() -> None:
    """Values of mean 1 and standard deviation 1 in turn: the e-value passes 1/α at the number that was estimated."""
    few = student([0.0, 2.0, 0.5, 1.5])
    n = sequential_seeds_needed(few, "above", 0.5)
    assert n is not None and n > (seeds_needed(few, "above", 0.5) or 0) > 0
    half = few.spread * math.sqrt((n - 1) / n)
    even = [1 - half, 1 + half] * (n // 2) if n % 2 == 0 else [1 - half, 1 + half] * (n // 2) + [1.0]
    assert e_value(even, 0.5, "above") == pytest.approx(1 / LEVEL, rel=0.5)
    assert (sequential_seeds_needed(few, "above", 0.5, comparisons=18) or 0) > n
    assert sequential_seeds_needed(few, "above", 1.0) is None, "at the margin itself nothing decides"
    assert sequential_seeds_needed(student([1.0]), "above", 0.5) is None


@settings(deadline=None, max_examples=40)
@given(st.floats(0.01, 5), st.floats(0.2, 5), st.integers(2, 30), st.sampled_from([1, 18]))
def test_seeds_needed_is_the_first_number_that_decides(distance: float, spread: float, n: int, family: int) -> None:
    """Against a search one by one, by the mixture's definition at mean and standard deviation as they are."""
    d = replace(student([0.0] * n), mean=1 + distance, spread=spread)

    def decided(k: int) -> bool:
        half = spread * math.sqrt((k - 1) / k)  # k values of this mean square, of which the e-value is a function
        a = distance / math.sqrt(distance**2 + half**2)
        share = k / (1 + k)
        t = a * math.sqrt(k * share / (1 - share * a * a))
        log_e = -0.5 * math.log1p(k) - k / 2 * math.log(1 - share * a * a) + math.log(2 * stats.t.cdf(t, k))
        return bool(log_e >= math.log(family / LEVEL))

    expected = next((k for k in range(n + 1, 1001) if decided(k)), None)
    assert sequential_seeds_needed(d, "above", 1.0, family) == expected
