"""Intervals and paired differences. Scores are [seeds, problems]; both seeds and problems are resampled."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

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
    seed_weights, (problem_weights,) = _resamples(len(scores), (scores.shape[1],), replicates)
    result: NDArray[np.float64] = ((seed_weights @ scores) * problem_weights).sum(1)
    return result


@lru_cache(maxsize=2)
def _resamples(seeds: int, problems: tuple[int, ...], replicates: int) -> tuple[Scores, tuple[Scores, ...]]:
    """Weights of seeds [replicates, seeds], and of each benchmark's problems [replicates, problems].

    Drawing them takes far longer than using them, and all models of a table use the same.
    """
    rng = np.random.default_rng(0)
    weights = [rng.multinomial(n, np.full(n, 1 / n), replicates) / n for n in (seeds, *problems)]
    return weights[0], tuple(weights[1:])


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
    seed_weights, problem_weights = _resamples(len(benchmarks[0]), tuple(s.shape[1] for s in benchmarks), replicates)
    for scores, weights in zip(benchmarks, problem_weights, strict=True):
        draws += ((seed_weights @ scores) * weights).sum(1) / len(benchmarks)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(np.mean([s.mean() for s in benchmarks])), float(low), float(high))


def over_seeds(values: Scores) -> Interval:
    """The mean over seeds [seeds] with Student's 95% interval; wide for few seeds, as it should be."""
    values = np.asarray(values, dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)
