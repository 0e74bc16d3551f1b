"""Intervals and paired differences. Scores are [seeds, problems]; both seeds and problems are resampled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
REPLICATES = 4000


class Interval(NamedTuple):
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float


def bootstrap(scores: Scores, replicates: int = REPLICATES) -> NDArray[np.float64]:
    """Means of resampled scores: seeds with replacement, and problems with replacement, the same ones for all seeds.

    A single seed leaves its own uncertainty out: the interval is then over problems alone.
    """
    scores = np.atleast_2d(scores)
    rng = np.random.default_rng(0)
    seeds, problems = scores.shape
    seed_weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), replicates) / seeds
    problem_weights = rng.multinomial(problems, np.full(problems, 1 / problems), replicates) / problems
    result: NDArray[np.float64] = ((seed_weights @ scores) * problem_weights).sum(1)
    return result


def interval(scores: Scores, replicates: int = REPLICATES) -> Interval:
    """The mean with the 2.5% and 97.5% quantiles of the bootstrap."""
    low, high = np.quantile(bootstrap(scores, replicates), [0.025, 0.975])
    return Interval(float(np.mean(scores)), float(low), float(high))


def paired_difference(a: Scores, b: Scores, replicates: int = REPLICATES) -> Interval:
    """a − b on the same seeds and problems: what they share cancels."""
    return interval(np.atleast_2d(a) - np.atleast_2d(b), replicates)


def average_interval(benchmarks: list[Scores], replicates: int = REPLICATES) -> Interval:
    """The mean over benchmarks (each counts the same), seeds resampled together, problems within each benchmark."""
    draws = np.zeros(replicates)
    rng = np.random.default_rng(0)
    seeds = benchmarks[0].shape[0]
    seed_weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), replicates) / seeds
    for scores in benchmarks:
        problems = scores.shape[1]
        weights = rng.multinomial(problems, np.full(problems, 1 / problems), replicates) / problems
        draws += ((seed_weights @ scores) * weights).sum(1) / len(benchmarks)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(np.mean([s.mean() for s in benchmarks])), float(low), float(high))


def over_seeds(values: Scores) -> Interval:
    """The mean over seeds [seeds] with Student's 95% interval; wide for few seeds, as it should be."""
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)
