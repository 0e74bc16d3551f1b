"""Verdicts on runs of any trainer: endpoints, pairs, and an error rate that looking after every seed does not raise."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from policygrain.analysis.run_claims import Endpoint, Run, RunClaim, anytime, decide_runs
from policygrain.analysis.statistics import student, unpaired
from policygrain.errors import UserError


def run(name: str, values: Any, seed: int | None = None, steps: Any = None) -> Run:
    numbers = np.atleast_1d(np.asarray(values, dtype=float))
    return Run(name, seed, np.arange(1.0, len(numbers) + 1) if steps is None else np.asarray(steps, float), numbers)


def side(name: str, finals: list[float], seeds: bool = True) -> list[Run]:
    return [run(f"{name}{i}", [0.0, final], i if seeds else None) for i, final in enumerate(finals)]


def decided(a: list[float], b: list[float], seeds: bool = True, **options: Any) -> RunClaim:
    return decide_runs(side("a", a, seeds), side("b", b, seeds), "reward", **options)


def test_the_difference_is_that_of_the_one_interval_function() -> None:
    a, b = [0.5, 0.7, 0.6, 0.9], [0.4, 0.5, 0.55, 0.6]
    found = decided(a, b)
    assert found.pairing == "paired by seed, over 4 training seeds"
    assert found.difference == student(np.subtract(a, b))


def test_without_seeds_sides_are_compared_by_welch() -> None:
    a, b = [0.5, 0.7, 0.6, 0.9], [0.4, 0.5, 0.55]
    found = decided(a, b, seeds=False)
    theirs = stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))
    assert found.difference.p == pytest.approx(theirs.pvalue)
    assert "unpaired, since not all runs have a seed" in found.pairing and found.difference.n == 3
    same = unpaired([1.0, 1.0], [0.5, 0.5])
    assert (same.mean, same.low, same.high, same.p) == (0.5, 0.5, 0.5, 0.0)


VERDICTS = [
    ([0.90, 0.91, 0.92, 0.93], {"margin": 0.2}, "smaller than 0.2"),
    ([0.60, 0.62, 0.61, 0.63], {"margin": 0.2}, "opposite"),
    ([1.10, 1.11, 1.12, 1.13], {"margin": 0.3}, "holds, smaller than 0.3"),
    ([1.50, 1.52, 1.51, 1.53], {"margin": 0.2}, "holds"),
    ([0.20, 1.90, 1.10, 1.00], {"margin": 0.1}, "inconclusive"),
    ([0.60, 0.62, 0.61, 0.63], {"claimed": "below"}, "holds"),
]


@pytest.mark.parametrize(("a", "options", "verdict"), VERDICTS)
@pytest.mark.parametrize("sequential", [False, True])
def test_the_verdicts_are_those_of_the_page(a: list[float], options: Any, verdict: str, sequential: bool) -> None:
    b = [0.91, 0.92, 0.89, 0.95] if verdict.startswith("smaller") else [0.9, 0.91, 0.92, 0.95]
    seeds = 3 if sequential else 1  # thrice as many, so that both decide
    rng = np.random.default_rng(0)
    many = [
        (x + rng.normal(0, 0.002), y + rng.normal(0, 0.002)) for _ in range(seeds) for x, y in zip(a, b, strict=True)
    ]
    found = decided([x for x, _ in many], [y for _, y in many], sequential=sequential, **options)
    assert found.verdict == verdict
    assert (found.more_seeds == 0) == (verdict != "inconclusive")
    assert json.loads(json.dumps(found.data()))["verdict"] == verdict
    assert f"that of b: {verdict}\n" in found.text()


def test_about_how_many_more_seeds_would_decide() -> None:
    """With that many of the same spread and mean, it is."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, 6)
    x = 0.5 + (x - x.mean()) / x.std(ddof=1)
    found = decided([*x], [0.0] * 6)
    assert found.verdict == "inconclusive" and found.more_seeds
    n = 6 + found.more_seeds
    more = rng.normal(0, 1, n)
    assert decided([*(0.5 + (more - more.mean()) / more.std(ddof=1))], [0.0] * n).verdict == "holds"
    assert decided([1e-6, -1e-6, 1.0, -1.0], [0.0] * 4).more_seeds is None


@pytest.mark.parametrize("options", [{}, {"margin": 0.1}, {"sequential": True}, {"seeds": False}])
def test_equal_sides_are_said_to_be_equal(options: Any) -> None:
    """No number of runs is named, since none would decide."""
    paired = options.get("seeds", True)
    values = [0.1, 0.2, 0.4] if paired else [0.5] * 3
    said = decided(values, values, **options).text()
    higher = decided([value + 0.3 for value in values], values, **options).text()
    assert "all differences are equal; is it the right metric?" in higher
    assert f"all {'pairs' if paired else 'runs'} are equal" in said
    assert "would be needed" not in said and "would decide" not in said


def test_endpoints() -> None:
    one = run("r", [0.0, 1.0, 2.0, 5.0], steps=[0, 1, 2, 4])
    assert Endpoint().of(one) == (5.0, 4, 4)
    assert Endpoint(last=2).of(one) == (3.5, 2, 4)
    assert Endpoint(last=2, until=3).of(one) == (1.5, 1, 2)
    assert Endpoint(auc=True).of(one)[0] == pytest.approx((0.5 + 1.5 + 7.0) / 4)
    with pytest.raises(UserError, match="r: has 4 values, and the endpoint needs 5"):
        Endpoint(last=5).of(one)
    diverged = run("r", [1.0, 2.0, np.nan])
    with pytest.raises(UserError, match=r"r: nan at step 3, so the run has no endpoint.*--until 2"):
        Endpoint().of(diverged)
    assert Endpoint(until=2).of(diverged)[0] == 2.0


def test_the_words_of_few_runs_and_of_runs_without_steps() -> None:
    few = decided([1.1, 1.2, 1.3], [1.0, 1.1, 1.25], sequential=True)
    assert math.isinf(few.difference.low) and few.data()["difference"]["low"] is None
    assert "over 3 training seeds: too few for an interval" in few.text() and "inf" not in few.text()
    assert Endpoint().text(0, 0) == "the value" and Endpoint().text(5, 5) == "the last value, at step 5"


def test_what_cannot_be_compared_is_refused() -> None:
    a, b = side("a", [1.0, 2.0]), side("b", [1.0, 2.0])
    with pytest.raises(UserError, match=r"--b: one run \(b0\). One run on a side decides nothing"):
        decide_runs(a, b[:1], "reward")
    longer = [b[0], run("long", [1, 2, 3], 1)]
    with pytest.raises(UserError, match=r"runs end at different steps, 2 \(a0\) to 3. --until 2"):
        decide_runs(a, longer, "reward")
    assert decide_runs(a, longer, "reward", endpoint=Endpoint(until=2)).difference.n == 2
    steps = 1_234_567 + np.arange(3)
    late = [run(f"late{i}", [1.0, 2.0, 3.0][: 2 + i], i, steps[: 2 + i]) for i in range(2)]
    with pytest.raises(UserError, match=r"different steps, 1234568 \(late0\) to 1234569\. --until 1234568 compares"):
        decide_runs(late, [r._replace(name=f"{r.name}b") for r in late], "reward")
    with pytest.raises(UserError, match="on both sides: a0, a1"):
        decide_runs(a, a, "reward")
    with pytest.raises(UserError, match="--a: two runs have the same seed"):
        decide_runs([a[0], a[1]._replace(seed=0)], b, "reward")
    with pytest.raises(UserError, match="seeds 1, 4 are on one side only"):
        decide_runs([a[0], a[1]._replace(seed=4)], b, "reward")
    with pytest.raises(UserError, match="--sequential needs runs in pairs"):
        decide_runs(a, b, "reward", pair=False, sequential=True)


def test_a_planned_number_is_said_and_a_curve_that_begins_elsewhere_too() -> None:
    found = decide_runs(
        [run(f"a{i}", [1, 2, 3 + i], i) for i in range(2)],
        [run(f"b{i}", [1, 2, 3], i, steps=[1, 1.5, 3]) for i in range(2)],
        "reward",
        endpoint=Endpoint(last=2),
    )
    assert "the values begin at step 1.5 in some runs and 2 in others" in found.notes
    assert any("use --sequential" in note for note in found.notes)


def test_looking_after_every_seed_is_wrong_in_at_most_5_percent() -> None:
    """2,000 sequences of 40 seeds without an effect: Student's interval excludes 0 at some time in a third of them."""
    rng = np.random.default_rng(0)
    sequences = rng.normal(0, 1, (2000, 40))
    wrong = {"student": 0, "anytime": 0}
    for x in sequences[:150]:
        looks = range(2, 41)
        wrong["student"] += any(student(x[:n]).p < 0.05 for n in looks)
        wrong["anytime"] += any(anytime(x[:n]).p < 0.05 for n in looks)
    assert wrong["student"] > 0.2 * 150
    # The rest with the formula itself, for speed: E = (1/√w) ((1 + q) / (1 + q/w))^(n/2), w = 1 + 4n, q = t²/(n − 1).
    n = np.arange(1, 41)
    mean = sequences.cumsum(1) / n
    square = ((sequences**2).cumsum(1) / n - mean**2)[:, 1:]
    q, w = mean[:, 1:] ** 2 / square, 1 + 4 * n[1:]
    e = ((1 + q) / (1 + q / w)) ** (n[1:] / 2) / np.sqrt(w)
    share = (e.max(1) > 20).mean()
    assert (e[:150].max(1) > 20).sum() == wrong["anytime"] and 0.005 < share < 0.05


def test_the_interval_has_the_values_that_the_p_value_does_not_exclude() -> None:
    d = anytime([0.1, 0.3, 0.2, 0.25, 0.15])
    assert d.above(d.low) == pytest.approx(0.05) and d.below(d.high) == pytest.approx(0.05)
    assert d.above(d.low - 0.01) < 0.05 < d.above(d.low + 0.01) and d.above(d.mean + 0.1) == 1
    assert anytime([0.1, 0.3]).low == -np.inf, "two seeds exclude nothing"
