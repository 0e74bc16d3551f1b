"""Intervals: the accuracy of an arm, the difference of two arms, and the mean of any number per seed.

An interval is for the mean over all possible seeds or initial models, with the benchmarks' problems fixed; that of the
accuracy of a single seed is over problems. docs/statistics.md explains the formulas and has their simulated coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, chdtri, gammaincinv, nctdtr, ndtri, stdtr, stdtrit

from ..errors import UserError

Array = NDArray[np.float64]
LEVEL = 0.05
SEEDS, STARTS, PROBLEMS = "training seeds", "initial models", "problems of one training seed"
NORMAL = float(ndtri(1 - LEVEL / 2))
POWER = 0.8  # share of studies
# Bounds the variance of a seed's mean from below, since few seeds may agree by chance; chosen by simulated coverage.
AGREEMENT = 0.7
# Up to this many correct answers the lower limit is the exact one of a Poisson count (Brown, Cai and DasGupta 2001).
FEW = 3.0


class Interval(NamedTuple):
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float


class Estimate(NamedTuple):
    """An accuracy between 0 and 1 with its 95% interval, over ``n`` of ``unit``."""

    mean: float
    low: float
    high: float
    n: int
    unit: str


@dataclass(frozen=True)
class Difference:
    """A mean difference with its 95% interval, over ``n`` of ``unit``."""

    mean: float
    low: float
    high: float
    n: int
    unit: str
    spread: float  # standard deviation of one unit's difference
    values: tuple[float, ...]  # one per unit, in order
    test: Callable[[float], float] = field(repr=False, compare=False)  # two-sided p-value of a true difference

    @property
    def p(self) -> float:
        """The two-sided p-value of no difference."""
        return self.test(0.0)

    @property
    def replicated(self) -> bool:
        """Whether the interval is over seeds or initial models, and not over the problems of a single one."""
        return self.n > 1 and self.unit != PROBLEMS

    @property
    def interval(self) -> Interval:
        return Interval(self.mean, self.low, self.high)

    def above(self, value: float) -> float:
        """The one-sided p-value of "the true difference is larger than ``value``"."""
        p = self.test(value) / 2
        return p if self.mean > value else 1 - p

    def below(self, value: float) -> float:
        """The one-sided p-value of "the true difference is smaller than ``value``"."""
        return 1 - self.above(value)

    def times(self, factor: float) -> Difference:
        """The same in another unit of measurement, such as points instead of shares; ``factor`` is positive."""
        mean, low, high = (factor * v for v in self.interval)
        values, spread = tuple(factor * v for v in self.values), factor * self.spread
        return Difference(mean, low, high, self.n, self.unit, spread, values, lambda v: self.test(v / factor))

    def numbers(self) -> dict[str, float | int | str]:
        return {name: getattr(self, name) for name in ("mean", "low", "high", "p", "n", "unit")}


def accuracy(scores: Sequence[Array], unit: str = SEEDS) -> Estimate:
    """The accuracy of an arm: a list over benchmarks of scores [units, problems]; benchmarks have equal weight.

    Student's t over seeds in Wilson's form: the standard error scales with √(μ(1 − μ)), so the interval stays within
    0 and 1 and has a width at 0 and 1.
    """
    arrays = _checked(scores)
    mean, low, high = accuracy_limits(arrays)
    return Estimate(float(mean), float(low), float(high), *_units(arrays, unit))


def difference(a: Sequence[Array], b: Sequence[Array], unit: str = SEEDS) -> Difference:
    """a − b on the same units and problems: each a list over benchmarks of scores [units, problems].

    Student's t over the units' differences in Tango's form: the standard error at a difference δ scales as it would
    for paired proportions that differ by δ. The interval excludes a value where its two-sided test has p < 0.05.
    """
    one, two = _checked(a), _checked(b)
    if [s.shape for s in one] != [s.shape for s in two]:
        shapes = (", ".join("×".join(map(str, s.shape)) for s in arrays) for arrays in (one, two))
        raise UserError(f"a difference needs the same seeds and problems on both sides, not {' and '.join(shapes)}.")
    pairs = [x - y for x, y in zip(one, two, strict=True)]
    s, (mean, low, high) = _summary(pairs), map(float, difference_limits(pairs))

    def test(value: float) -> float:
        variance = _paired_variance(np.asarray(value), s.gained, s.lost)
        return _two_sided(mean - value, math.sqrt(s.error2 * variance), s.df)

    n, unit = _units(one, unit)
    spread = math.sqrt(n * s.error2 * max(0.0, float(s.variance)))
    return Difference(mean, low, high, n, unit, spread, tuple(map(float, s.seeds)), test)


def over_seeds(values: Sequence[float] | Array) -> Interval:
    """The mean of a number per seed [seeds] with Student's 95% interval; without one both limits are the mean."""
    d = student(values)
    return d.interval if math.isfinite(d.low) else Interval(d.mean, d.mean, d.mean)


def student(values: Sequence[float] | Array, unit: str = SEEDS) -> Difference:
    """Paired differences of a number per unit of replication [units], by Student's t.

    ``unit``: training seeds or initial models. A single one has no interval, nor have fewer than six equal differences
    other than 0, as measures with few values have: by the sign test, p is 2^(1 − n).
    """
    x = np.asarray(values, dtype=float)
    mean, n, numbers = float(np.mean(x)), len(x), tuple(map(float, x))
    if n < 2 or (n < 6 and abs(mean) > 0 and np.ptp(x) < 1e-9 * abs(mean)):
        return Difference(mean, -math.inf, math.inf, n, unit, math.inf, numbers, lambda _: 1.0)
    return _by_student(mean, float(x.std(ddof=1)), n, n - 1, unit, numbers)


def unpaired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Mean of ``a`` − mean of ``b``, two or more each, by Welch's t; ``n`` of the smaller side, ``spread`` of pairs.

    A few equal values on each side have no interval, where not even a permutation test would decide.
    """
    one, two = (float(np.var(side, ddof=1)) / len(side) for side in (a, b))
    n, error2 = min(len(a), len(b)), one + two
    parts = one**2 / (len(a) - 1) + two**2 / (len(b) - 1)
    df, mean = error2**2 / parts if parts else len(a) + len(b) - 2, float(np.mean(a) - np.mean(b))
    if max(np.ptp(a), np.ptp(b)) < 1e-9 * abs(mean) and math.comb(len(a) + len(b), n) * LEVEL <= 2:
        return Difference(mean, -math.inf, math.inf, n, SEEDS, math.inf, (), lambda _: 1.0)
    return _by_student(mean, math.sqrt(error2 * n), n, df, SEEDS, ())


def _by_student(mean: float, spread: float, n: int, df: float, unit: str, values: tuple[float, ...]) -> Difference:
    error = spread / math.sqrt(n)
    half = float(stdtrit(df, 1 - LEVEL / 2)) * error
    return Difference(
        mean, mean - half, mean + half, n, unit, spread, values, lambda v: _two_sided(mean - v, error, df)
    )


def _two_sided(distance: float, error: float, df: float) -> float:
    """P(a distance this large or larger, on either side) where the true one is 0; by Student's t."""
    if abs(distance) < 1e-12:  # rounding
        return 1.0
    return min(1.0, 2 * float(stdtr(df, -abs(distance) / error))) if error else 0.0


def median(values: Sequence[float] | Array) -> Interval:
    """The median of a number per unit with the 95% interval of the exact sign test; values may be infinite."""
    ordered, n = sorted(float(v) for v in values), len(values)
    outside = next((k for k in range(n // 2, 0, -1) if bdtr(k - 1, n, 0.5) <= LEVEL / 2), 0)
    low, high = (ordered[outside - 1], ordered[n - outside]) if outside else (-math.inf, math.inf)
    return Interval((ordered[(n - 1) // 2] + ordered[n // 2]) / 2, low, high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that may all be compared with one level."""
    p = np.array(p_values, dtype=float)
    order = p.argsort(kind="stable")
    p[order] = np.maximum.accumulate((p[order] * np.arange(len(p), 0, -1)).clip(max=1.0))
    return p.tolist()


def pooled_spread(differences: Sequence[Difference]) -> Interval:
    """The standard deviation over units, pooled over differences with two or more of them each, with its 95% interval.

    Differences are taken to share an arm, such as a reference, and so to be correlated by 1/2: m of them together have
    4 m / (m + 3) times the degrees of freedom of one.
    """
    degrees = [d.n - 1 for d in differences]
    variance = sum(df * d.spread**2 for df, d in zip(degrees, differences, strict=True)) / sum(degrees)
    independent = 4 * sum(degrees) / (len(differences) + 3)
    low, high = (math.sqrt(variance * independent / float(chdtri(independent, p))) for p in (LEVEL / 2, 1 - LEVEL / 2))
    return Interval(math.sqrt(variance), low, high)


def seeds_to_show(effect: float, sd: float, comparisons: int = 1, most: int = 1000) -> int | None:
    """The number of seeds with which a share `POWER` of studies shows the direction of a true paired difference.

    ``effect`` and its standard deviation over seeds ``sd`` have one unit. By Student's t at the level of the first step
    of Holm's correction over ``comparisons``. None: over ``most``.
    """
    if not sd:
        return 2
    n = np.arange(2, most + 1, dtype=float)
    critical = stdtrit(n - 1, 1 - LEVEL / 2 / comparisons)
    enough = np.flatnonzero(1 - nctdtr(n - 1, np.sqrt(n) * effect / sd, critical) >= POWER)
    return int(n[enough[0]]) if len(enough) else None


# ---- the limits, of many draws at once ------------------------------------------------------------------------------


def accuracy_limits(scores: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Mean, lower and upper limit of accuracies; ``scores`` a list over benchmarks of [..., seeds, problems]."""
    s = _summary(scores)
    c = s.critical**2 * s.error2
    middle = (s.mean + c / 2) / (1 + c)
    half = np.sqrt(c * s.mean * (1 - s.mean) + c**2 / 4) / (1 + c)
    low, high = middle - half, middle + half
    low = np.where(s.mean <= 0, 0.0, np.minimum(low, _least(s.mean, s.answers, low)))
    high = np.where(s.mean >= 1, 1.0, np.maximum(high, 1 - _least(1 - s.mean, s.answers, 1 - high)))
    return s.mean, low.clip(0, 1), high.clip(0, 1)


def difference_limits(pairs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Mean, lower and upper limit; ``pairs`` a list over benchmarks of differences [..., seeds, problems]."""
    s = _summary(pairs)
    c = s.critical**2 * s.error2
    limits = []
    for end in (-1.0, 1.0):
        inside, outside = s.mean, np.full_like(s.mean, end)
        for _ in range(50):  # bisection, to 2 / 2^50
            value = (inside + outside) / 2
            there = (value - s.mean) ** 2 <= c * _paired_variance(value, s.gained, s.lost)
            inside, outside = np.where(there, value, inside), np.where(there, outside, value)
        limits.append(inside)
    return s.mean, limits[0], limits[1]


class _Summary(NamedTuple):
    """Statistics that determine an interval: [...] each, ``seeds`` [..., seeds]."""

    seeds: Array  # the mean over benchmarks and problems, of each seed
    mean: Array
    gained: Array  # share of answers that only the first has right; of an accuracy, that are right
    lost: Array  # share of answers that only the second has right
    variance: Array  # of one answer
    error2: Array  # squared standard error of the mean over ``variance``
    critical: float  # Student's quantile
    df: int
    answers: int  # of all seeds together


def _summary(scores: Sequence[Array]) -> _Summary:
    """``scores``: a list over benchmarks of [..., seeds, problems], between −1 and 1."""
    seeds = np.mean([s.mean(-1) for s in scores], axis=0)
    gained, lost = (np.mean([s.clip(*ends).mean((-2, -1)) for s in scores], axis=0) for ends in ((0, 1), (-1, 0)))
    lost = -lost
    n = seeds.shape[-1]
    mean = seeds.mean(-1)
    variance = gained + lost - mean**2
    # The smallest benchmark limits precision where no answer, or every answer, is right.
    problems = len(scores) * min(s.shape[-1] for s in scores)
    if n > 1:
        squared, df = seeds.var(-1, ddof=1) / n, n - 1
    else:
        sizes = [s.shape[-1] for s in scores]
        parts = [s.var((-2, -1)) / max(1, size - 1) for s, size in zip(scores, sizes, strict=True)]
        squared, df = np.sum(parts, axis=0) / len(scores) ** 2, max(1, sum(sizes) - len(sizes))
    critical = float(stdtrit(df, 1 - LEVEL / 2))
    positive = variance > 1e-12
    ratio = np.where(positive, squared / np.where(positive, variance, 1.0), 0.0)
    least = (NORMAL / critical) ** 2 / (n * problems * (1 + AGREEMENT * problems * variance.clip(0)))
    return _Summary(seeds, mean, gained, lost, variance, np.maximum(ratio, least), critical, df, n * problems)


def _least(share: Array, answers: int, otherwise: Array) -> Array:
    """The exact lower limit of a small share, 5% one-sided; ``otherwise`` where it is not small."""
    count = share * answers
    few = (count > 0) & (count <= FEW + 1e-6)
    return np.where(few, gammaincinv(np.where(few, count, 1.0), LEVEL) / answers, otherwise)


def _paired_variance(value: Array, gained: Array, lost: Array) -> Array:
    """Variance of an answer's difference if its mean were ``value``: Tango's restricted maximum likelihood (1998)."""
    b = -gained - lost + (2 - gained + lost) * value
    c = -lost * value * (1 - value)
    share_lost = (np.sqrt((b**2 - 8 * c).clip(0)) - b) / 4
    variance: Array = (2 * share_lost + value * (1 - value)).clip(0)
    return variance


def _checked(scores: Sequence[Array]) -> list[Array]:
    """Scores as arrays [seeds, problems]. UserError if one is empty or outside 0 to 1, or numbers of seeds differ."""
    arrays = [np.atleast_2d(np.asarray(s, dtype=float)) for s in scores]
    if not arrays or any(s.ndim != 2 or not s.size for s in arrays):
        raise UserError("scores: give a list over benchmarks of arrays [seeds, problems], none of them empty.")
    if len({len(s) for s in arrays}) > 1 or any(not ((s >= 0) & (s <= 1)).all() for s in arrays):
        counts = ", ".join(str(len(s)) for s in arrays)
        raise UserError(f"scores: between 0 and 1, of equally many seeds in each benchmark; seeds: {counts}.")
    return arrays


def _units(scores: Sequence[Array], unit: str) -> tuple[int, str]:
    n = len(scores[0])
    return (n, unit) if n > 1 else (sum(s.shape[1] for s in scores), PROBLEMS)
