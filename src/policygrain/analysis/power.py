"""Power: the number of seeds that decides a comparison, from the spread of paired differences over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit
from scipy.stats import chi2, nct

from ..errors import UserError
from ..results.reader import StudyResults
from ..study.runs import arms_of
from .measures import accuracy, area
from .statistics import LEVEL
from .verdicts import MOST_SEEDS

ENDPOINTS: dict[str, Callable[[StudyResults, str], pd.Series]] = {
    "area under the learning curve": area,
    "accuracy of the final model": accuracy,
}
EFFECTS = (1.0, 2.0, 4.0)  # points
POWER = 0.8  # share of studies


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

    UserError if no two of them have two seeds in common.
    """
    headline = results.study.experiments.get("headline")
    by_updates: dict[int, list[str]] = {}
    for arm in arms_of(headline, results.study) if headline else ():
        if {run for run in results.summaries if run.arm == arm.name}:
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
            low, high = (math.sqrt(variance * independent / float(chi2.ppf(q, independent))) for q in (0.975, 0.025))
            spreads.append(Spread(endpoint, updates, math.sqrt(variance), low, high, len(pairs), independent))
    if not spreads:
        raise UserError(f"{results.folder.path}: no two methods of `experiments.headline` share two seeds.")
    return spreads


def seeds_to_decide(sd: float, effect: float, comparisons: int) -> int | None:
    """The seeds to plan for a true difference: those with which `POWER` of studies show its direction.

    ``sd`` and ``effect`` in points; at the first step of Holm's correction over ``comparisons``. None: over 1,000.
    """
    n = np.arange(2, MOST_SEEDS + 1)
    power = nct.sf(stdtrit(n - 1, 1 - LEVEL / 2 / comparisons), n - 1, np.sqrt(n) * effect / sd)
    enough = np.flatnonzero(power >= POWER)
    return int(n[enough[0]]) if len(enough) else None
