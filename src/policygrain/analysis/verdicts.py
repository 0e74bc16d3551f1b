"""From differences to verdicts: tests against a margin, corrected for how many there are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from .statistics import LEVEL, REPLICATES, Difference

Side = Literal["above", "below", "apart"]
Verdict = Literal["supported", "not supported", "no difference larger than the margin", "undecided"]
MOST_SEEDS = 1000


class PValues(NamedTuple):
    """One-sided p-values of three statements about the true difference."""

    supports: float  # it lies beyond the margin, on the claimed side
    refutes: float  # it does not
    ties: float  # it is smaller than the margin on either side


def margin_tests(difference: Difference, claimed: Side, margin: float) -> PValues:
    """Tests of a difference against a margin in the same unit. A single replicate decides nothing about others."""
    if difference.unit not in REPLICATES or difference.n < 2:
        return PValues(1.0, 1.0, 1.0)
    above, below = difference.above, difference.below
    ties = max(above(-margin), below(margin))  # two one-sided tests
    if claimed == "apart":
        return PValues(min(1.0, 2 * min(above(margin), below(-margin))), 1.0, ties)
    if claimed == "above":
        return PValues(above(margin), below(margin), ties)
    return PValues(below(-margin), above(-margin), ties)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that may all be compared with one level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        found[i] = largest
    return found


def corrected(tests: Sequence[PValues]) -> list[PValues]:
    """The p-values of a whole ledger, each of the three statements corrected by Holm's method."""
    columns = [holm([getattr(t, name) for t in tests]) for name in PValues._fields]
    return [PValues(*row) for row in zip(*columns, strict=True)]


def decide(p: PValues, level: float = LEVEL) -> Verdict:
    """The verdict on one comparison; ``p`` corrected."""
    if p.supports < level:
        return "supported"
    if p.ties < level:
        return "no difference larger than the margin"
    return "not supported" if p.refutes < level else "undecided"


def combine(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim: all its comparisons have to be supported, and one that is not is enough against it."""
    for verdict in ("not supported", "no difference larger than the margin", "undecided"):
        if verdict in verdicts:
            return verdict
    return "supported"


def seeds_needed(difference: Difference, claimed: Side, margin: float, comparisons: int = 1) -> int | None:
    """About how many units of replication would decide, if effect and spread stayed; None: over 1,000, or unknown.

    At the level of the first step of Holm's correction over ``comparisons``.
    """
    if difference.unit not in REPLICATES or difference.n < 2:
        return None
    distance = abs(distance_to(difference, claimed, margin))
    enough = np.flatnonzero(_half_widths(LEVEL / comparisons) * difference.spread < distance)
    return max(int(enough[0]) + 2, difference.n + 1) if len(enough) else None


def distance_to(difference: Difference, claimed: Side, margin: float) -> float:
    """How far a difference lies beyond the margin on the claimed side; negative where it does not."""
    return {"above": difference.mean, "below": -difference.mean, "apart": abs(difference.mean)}[claimed] - margin


@functools.cache
def _half_widths(level: float) -> NDArray[np.float64]:
    """Width of one-sided limits for n = 2, 3 … units of standard deviation 1."""
    n = np.arange(2, MOST_SEEDS + 1)
    widths: NDArray[np.float64] = stdtrit(n - 1, 1 - level) / np.sqrt(n)
    return widths
