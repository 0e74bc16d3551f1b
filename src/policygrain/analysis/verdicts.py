"""From differences to verdicts: tests against 0 and a published size, corrected for multiple comparisons."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from .statistics import LEVEL, REPLICATES, Difference

Side = Literal["above", "below", "apart"]
Verdict = Literal["holds", "opposite", "smaller than published", "undecided"]
MOST_SEEDS = 1000


class PValues(NamedTuple):
    """p-values of three statements about the true difference."""

    holds: float  # it lies on the claimed side of 0
    opposite: float  # it lies on the other side of 0
    smaller: float  # it is smaller than the published size on the claimed side


def effect_tests(difference: Difference, claimed: Side, size: float | None = None) -> PValues:
    """Tests of a difference, all in its unit. With a single replicate all p-values are 1.

    The one-sided p-values of the two directions are doubled, so that one level holds for both together; `apart` holds
    in both. ``size``: the published one, without a sign; None: there is none.
    """
    if difference.unit not in REPLICATES or difference.n < 2:
        return PValues(1.0, 1.0, 1.0)
    larger, lower = (min(1.0, 2 * p) for p in (difference.above(0.0), difference.below(0.0)))
    if claimed == "apart":
        return PValues(min(larger, lower), 1.0, 1.0)
    if claimed == "above":
        return PValues(larger, lower, 1.0 if size is None else difference.below(size))
    return PValues(lower, larger, 1.0 if size is None else difference.above(-size))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that may all be compared with one level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted


def corrected(tests: Sequence[PValues]) -> list[PValues]:
    """The p-values of a whole ledger, each of the three statements corrected by Holm's method."""
    columns = [holm([getattr(t, name) for t in tests]) for name in PValues._fields]
    return [PValues(*row) for row in zip(*columns, strict=True)]


def decide(p: PValues) -> Verdict:
    """The verdict on one comparison; ``p`` corrected."""
    if p.holds < LEVEL:
        return "holds"
    if p.opposite < LEVEL:
        return "opposite"
    return "smaller than published" if p.smaller < LEVEL else "undecided"


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim, which holds only if all its comparisons hold."""
    for verdict in ("opposite", "smaller than published", "undecided"):
        if verdict in verdicts:
            return verdict
    return "holds"


def seeds_needed(difference: Difference, distance: float, comparisons: int = 1) -> int | None:
    """About how many units of replication would show this ``distance``, if effect and spread stayed.

    At the level of the first step of Holm's correction over ``comparisons``. None: over 1,000, or unknown.
    """
    if difference.unit not in REPLICATES or difference.n < 2:
        return None
    enough = np.flatnonzero(_half_widths(LEVEL / 2 / comparisons) * difference.spread < distance)
    return max(int(enough[0]) + 2, difference.n + 1) if len(enough) else None


def distance_to_decide(effect: float, claimed: Side, size: float | None) -> float:
    """Distance of an effect from 0 or, if that is larger, its shortfall from the published size."""
    return max(abs(effect), 0.0 if size is None else size - (-effect if claimed == "below" else effect))


@functools.cache
def _half_widths(level: float) -> NDArray[np.float64]:
    """Width of one-sided limits for n = 2, 3 … units of standard deviation 1."""
    n = np.arange(2, MOST_SEEDS + 1)
    widths: NDArray[np.float64] = stdtrit(n - 1, 1 - level) / np.sqrt(n)
    return widths
