"""From differences to verdicts: tests against 0 and a published size, corrected; the seeds that a verdict needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from .statistics import LEVEL, REPLICATES, Array, Difference

Side = Literal["above", "below", "apart"]
Verdict = Literal["holds", "opposite", "smaller than published", "inconclusive"]
MOST_SEEDS = 1000


class PValues(NamedTuple):
    """p-values of three statements about the true difference."""

    holds: float  # it lies on the claimed side of 0
    opposite: float  # it lies on the other side of 0
    smaller: float  # it is smaller than the published size on the claimed side


def effect_tests(difference: Difference, claimed: Side, size: float | None = None, sides: int = 2) -> PValues:
    """Tests of a difference; all numbers are in its unit. With a single replicate all p-values are 1.

    The one-sided p-values of the two directions are multiplied by ``sides`` (2), so that one level holds for both
    together; `apart` holds in either direction. ``sides`` is 1 if `above` and `below` already hold together. ``size``:
    the published size, without a sign; None if there is none.
    """
    if difference.unit not in REPLICATES or difference.n < 2:
        return PValues(1.0, 1.0, 1.0)
    larger, lower = (min(1.0, sides * p) for p in (difference.above(0.0), difference.below(0.0)))
    if claimed == "apart":
        return PValues(min(larger, lower), 1.0, 1.0)
    if claimed == "above":
        return PValues(larger, lower, 1.0 if size is None else min(1.0, difference.below(size)))  # 1 for NaN
    return PValues(lower, larger, 1.0 if size is None else min(1.0, difference.above(-size)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that may all be compared with one level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted


def decide(p: PValues) -> Verdict:
    """The verdict on one comparison; ``p`` corrected."""
    if p.holds < LEVEL:
        return "holds"
    if p.opposite < LEVEL:
        return "opposite"
    return "smaller than published" if p.smaller < LEVEL else "inconclusive"


# ---- seeds ----------------------------------------------------------------------------------------------------------


def distance_to_decide(effect: float, claimed: Side, size: float | None) -> float:
    """The larger of the effect's distance from 0 and of its shortfall from the published size."""
    return max(abs(effect), 0.0 if size is None else size - (-effect if claimed == "below" else effect))


def student_width(n: Array, level: float) -> Array:
    """Half the width of Student's interval for n differences of standard deviation 1."""
    width: Array = stdtrit(n - 1, 1 - level / 2) / np.sqrt(n)
    return width


def seeds_needed(
    difference: Difference,
    distance: float,
    comparisons: int = 1,
    width: Callable[[Array, float], Array] = student_width,
) -> int | None:
    """About how many units of replication would show this ``distance``, if effect and spread stayed.

    At the level of the first step of Holm's correction over ``comparisons``. None: over 1,000, or unknown.
    """
    if difference.unit not in REPLICATES or difference.n < 2:
        return None
    n = np.arange(difference.n + 1, MOST_SEEDS + 1, dtype=float)
    return _first(n, width(n, LEVEL / comparisons) * difference.spread < distance)


def _first(n: Array, enough: NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(enough)
    return int(n[found[0]]) if len(found) else None
