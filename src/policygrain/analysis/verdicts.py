"""From differences to verdicts: tests against 0 and a published size, corrected; the seeds that a verdict needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, nctdtr, stdtrit

from ..errors import UserError
from ..study.runs import arms_of
from .measures import accuracy, auc
from .statistics import LEVEL, REPLICATES, Array, Difference

if TYPE_CHECKING:
    import pandas as pd

    from ..results import StudyResults

Side = Literal["above", "below", "apart"]
Verdict = Literal["holds", "opposite", "smaller than published", "inconclusive"]
MOST_SEEDS = 1000
ENDPOINTS: dict[str, Callable[[StudyResults, str], pd.Series]] = {
    "mean validation accuracy (AUC)": auc,
    "accuracy of the final model": accuracy,
}
EFFECTS = (1.0, 2.0, 4.0)  # points
POWER = 0.8  # share of studies


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


def seeds_to_decide(sd: float, effect: float, comparisons: int) -> int | None:
    """The number of seeds with which a share `POWER` of studies shows the direction of a true difference.

    ``sd`` and ``effect`` in points; at the first step of Holm's correction over ``comparisons``. None: over 1,000.
    """
    if not sd:
        return 2
    n = np.arange(2, MOST_SEEDS + 1, dtype=float)
    critical = stdtrit(n - 1, 1 - LEVEL / 2 / comparisons)
    return _first(n, 1 - nctdtr(n - 1, np.sqrt(n) * effect / sd, critical) >= POWER)


def _first(n: Array, enough: NDArray[np.bool_]) -> int | None:
    found = np.flatnonzero(enough)
    return int(n[found[0]]) if len(found) else None


class Spread(NamedTuple):
    """The standard deviation over seeds of the difference of two arms, pooled over pairs of arms, in points."""

    endpoint: str
    updates: int
    sd: float
    low: float
    high: float  # 95% interval; the pairs share arms, so it is somewhat too narrow
    pairs: int
    degrees: int


def paired_spreads(results: StudyResults) -> list[Spread]:
    """The spread of each endpoint between the methods of the headline experiment, by updates per batch.

    UserError if no two methods have two seeds in common.
    """
    headline = results.study.experiments.get("headline")
    by_updates: dict[int, list[str]] = {}
    for arm in arms_of(headline, results.study) if headline else ():
        if any(run.arm == arm.name for run in results.summaries):
            by_updates.setdefault(arm.training(results.study).updates_per_batch, []).append(arm.name)
    spreads = []
    for endpoint, measure in ENDPOINTS.items():
        for updates, arms in sorted(by_updates.items()):
            values = {arm: measure(results, arm) for arm in arms}
            pairs = [(values[a] - values[b]).dropna() for a, b in itertools.combinations(arms, 2)]
            pairs = [pair for pair in pairs if len(pair) > 1]
            if not pairs:
                continue
            degrees = sum(len(pair) - 1 for pair in pairs)
            squares = sum(float(((pair - pair.mean()) ** 2).sum()) for pair in pairs)
            # Of k arms only k − 1 differences are independent.
            independent = max(1, round(degrees * 2 / len(arms)))
            variance = squares / degrees
            low, high = (
                math.sqrt(variance * independent / float(chdtri(independent, tail))) for tail in (0.025, 0.975)
            )
            spreads.append(Spread(endpoint, updates, math.sqrt(variance), low, high, len(pairs), independent))
    if not spreads:
        raise UserError(f"{results.folder.path}: no two methods of `experiments.headline` share two seeds.")
    return spreads
