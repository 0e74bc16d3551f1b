"""Intervals, paired differences and tests. Scores are [seeds, problems]; both seeds and problems are resampled."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Scores = NDArray[np.float64]
REPLICATES = 4000


class Interval(NamedTuple):
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float


def bootstrap(scores: Scores, replicates: int = REPLICATES) -> NDArray[np.float64]:
    """Means of resampled scores [replicates]: seeds and problems with replacement, the same problems for all seeds.

    With a single seed, the variation over seeds is not included: the interval is over problems only.
    """
    scores = np.atleast_2d(scores)
    seed_weights, (problem_weights,) = _resamples(len(scores), (scores.shape[1],), replicates)
    result: NDArray[np.float64] = ((seed_weights @ scores) * problem_weights).sum(1)
    return result


@lru_cache(maxsize=2)
def _resamples(seeds: int, problems: tuple[int, ...], replicates: int) -> tuple[Scores, tuple[Scores, ...]]:
    """Weights of seeds [replicates, seeds], and of each benchmark's problems [replicates, problems].

    They are cached because computing them is slow and all models of a table use the same ones.
    """
    rng = np.random.default_rng(0)
    weights = [rng.multinomial(n, np.full(n, 1 / n), replicates) / n for n in (seeds, *problems)]
    return weights[0], tuple(weights[1:])


def interval(scores: Scores, replicates: int = REPLICATES) -> Interval:
    """The mean with the 2.5% and 97.5% quantiles of the bootstrap."""
    low, high = np.quantile(bootstrap(scores, replicates), [0.025, 0.975])
    return Interval(float(np.mean(scores)), float(low), float(high))


def paired_difference(a: Scores, b: Scores, replicates: int = REPLICATES) -> Interval:
    """The interval of a − b, paired by seed and problem."""
    return interval(np.atleast_2d(a) - np.atleast_2d(b), replicates)


def average_interval(benchmarks: list[Scores], replicates: int = REPLICATES) -> Interval:
    """The unweighted mean over benchmarks; seeds are resampled together, problems within each benchmark."""
    means = np.zeros(replicates)
    seed_weights, problem_weights = _resamples(len(benchmarks[0]), tuple(s.shape[1] for s in benchmarks), replicates)
    for scores, weights in zip(benchmarks, problem_weights, strict=True):
        means += ((seed_weights @ scores) * weights).sum(1) / len(benchmarks)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(np.mean([s.mean() for s in benchmarks])), float(low), float(high))


def over_seeds(values: Scores) -> Interval:
    """The mean over seeds [seeds] with Student's 95% interval; with one seed, the interval is the mean itself."""
    values = np.asarray(values, dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


Side = Literal["above", "below", "apart"]
Verdict = Literal["supported", "not supported", "undecided at this scale"]
LEVEL = 0.05
MOST_SEEDS = 1000


class Evidence(NamedTuple):
    """The result of a comparison over seeds."""

    effect: float
    low: float  # 95% interval, Student's t over seeds, not corrected for multiple comparisons
    high: float
    p_for: float  # null hypothesis: the effect is not beyond the margin on the claimed side
    p_against: float  # null hypothesis: the effect is beyond the margin on the claimed side
    seeds: int
    seeds_needed: int | None  # approximate number that would decide, at equal effect and spread; None: over 1,000


def weigh(values: Sequence[float], claimed: Side, margin: float = 0.0) -> Evidence:
    """One-sample t-tests of paired values [seeds] against the margin, one-sided if the claim has a direction.

    `apart` is two-sided; evidence against it is an effect within the margin on both sides.
    """
    x = np.asarray(values, dtype=float)
    n, effect = len(x), float(np.mean(x))
    if n < 2:
        return Evidence(effect, -math.inf, math.inf, 1.0, 1.0, n, None)
    error = float(x.std(ddof=1) / math.sqrt(n))
    half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
    if claimed == "apart":
        p_for = _p((abs(effect) - margin), error, n) * 2
        p_against = max(_p(margin - effect, error, n), _p(margin + effect, error, n))
        distance = abs(abs(effect) - margin)
    else:
        signed = effect if claimed == "above" else -effect
        p_for, p_against = _p(signed - margin, error, n), _p(margin - signed, error, n)
        distance = abs(signed - margin)
    spread = error * math.sqrt(n)
    return Evidence(effect, effect - half, effect + half, min(1.0, p_for), p_against, n, _needed(distance, spread))


def _p(distance: float, error: float, n: int) -> float:
    """One-sided p-value of a t-test: P(distance this large or larger) if the true distance is 0."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(n - 1, -distance / error))


def _needed(distance: float, spread: float) -> int | None:
    """The smallest n with t(1 − α/2, n − 1) · spread / √n < distance."""
    enough = np.flatnonzero(_half_widths() * spread < distance)
    return int(enough[0]) + 2 if len(enough) else None


@functools.cache
def _half_widths() -> NDArray[np.float64]:
    """Half of a 95% interval's width for n = 2, 3 … seeds of standard deviation 1."""
    n = np.arange(2, MOST_SEEDS + 1)
    widths: NDArray[np.float64] = stdtrit(n - 1, 1 - LEVEL / 2) / np.sqrt(n)
    return widths


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values after Holm's step-down correction for multiple tests."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = largest
    return corrected


def decide(p_for: Sequence[float], p_against: Sequence[float]) -> Verdict:
    """The verdict on a claim, from the corrected p-values of its comparisons.

    It is supported if all comparisons support it, and not supported if one is refuted.
    """
    if all(p < LEVEL for p in p_for):
        return "supported"
    return "not supported" if any(p < LEVEL for p in p_against) else "undecided at this scale"
