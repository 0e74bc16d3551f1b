"""Tests and intervals that stay valid however often seeds are added and looked at.

Differences are taken as normal with unknown mean and standard deviation. The e-value of "the standardised effect is
positive" is the likelihood ratio of a half-normal prior on it over no effect, with the right-Haar prior on the standard
deviation: a one-sided t-mixture (Robbins 1970; Lai 1976; Lindon, Ham, Tingley and Bojinov 2022). Under no effect the
chance that it ever reaches 1 / α is at most α.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import stdtr

from ..errors import UserError
from .statistics import LEVEL, SEEDS, Array, Difference
from .verdicts import MOST_SEEDS, PValues, Side, Verdict, corrected, decide, distance_to

PRIOR = 1.0  # variance of the standardised effect; with 1, effects near one standard deviation are decided soonest
Region = Literal[Side, "within"]


def e_value(differences: Sequence[float], margin: float, side: Region, prior: float = PRIOR) -> float:
    """Evidence from paired differences [seeds], in order, that the true one lies in a region.

    `above`: larger than ``margin``; `below`: smaller than −``margin``; `apart`: one of these; `within`: between −margin
    and margin, for which its two sides have to be shown.
    """
    if side == "above":
        return _exp(_log_e(np.asarray(differences, dtype=float) - margin, prior))
    if side == "below":
        return _exp(_log_e(-np.asarray(differences, dtype=float) - margin, prior))
    ends: tuple[Region, Region] = ("above", "below")
    if side == "apart":  # the mean of two e-values is one
        return sum(e_value(differences, margin, end, prior) for end in ends) / 2
    if margin <= 0:
        raise UserError(f"margin: {margin:g}; nothing lies within it. Give the smallest difference that matters.")
    return min(e_value(differences, -margin, end, prior) for end in ends)


@dataclass
class Evidence:
    """What the seeds of one comparison have shown so far, and the verdict once there is one.

    The largest e-values are kept, so evidence only grows as seeds are appended, and a recorded verdict stays.
    """

    claimed: Side
    margin: float
    values: list[float] = field(default_factory=list)
    verdict: Verdict = "undecided"
    seeds: int | None = None  # how many seeds the verdict took
    largest: dict[str, float] = field(default_factory=dict)  # e-value by region

    def __post_init__(self) -> None:
        given, self.values = self.values, []
        self.append(given)

    def append(self, values: Iterable[float]) -> None:
        """Add seeds, in the order in which they were planned."""
        for value in values:
            self.values.append(float(value))
            for name, (margin, side) in self._regions().items():
                found = e_value(self.values, margin, side)
                self.largest[name] = max(self.largest.get(name, 0.0), found)

    def p_values(self) -> PValues:
        """p-values that stay valid at any number of seeds."""
        p = {name: min(1.0, 1 / max(1.0, self.largest.get(name, 0.0))) for name in self._regions()}
        tie = max(p["above −margin"], p["below margin"])
        return PValues(p["supports"], p.get("refutes", 1.0), tie)

    def _regions(self) -> dict[str, tuple[float, Side]]:
        """Margin and side of each region whose e-value is followed; −margin is on the other side of 0."""
        regions: dict[str, tuple[float, Side]] = {
            "supports": (self.margin, self.claimed),
            "above −margin": (-self.margin, "above"),
            "below margin": (-self.margin, "below"),
        }
        if self.claimed != "apart":
            regions["refutes"] = (-self.margin, "below" if self.claimed == "above" else "above")
        return regions


@dataclass
class Planned:
    """A comparison over a number of replicates that was planned beforehand: its p-values are known at once."""

    tests: PValues
    verdict: Verdict = "undecided"
    seeds: int | None = None
    values: tuple[float, ...] = ()

    def p_values(self) -> PValues:
        """Those of a fixed test, which are valid at any time because no look changes them."""
        return self.tests


def settle(ledger: Sequence[Evidence | Planned], level: float = LEVEL) -> None:
    """Record the verdicts that are now decided, corrected by Holm's method over the whole ledger.

    p-values never grow, so Holm's method rejects no less later: a verdict is final when it is recorded.
    """
    for evidence, p in zip(ledger, corrected([e.p_values() for e in ledger]), strict=True):
        verdict = decide(p, level)
        if evidence.verdict == "undecided" and verdict != "undecided":
            evidence.verdict, evidence.seeds = verdict, len(evidence.values)


def sequential_seeds_needed(difference: Difference, claimed: Side, margin: float, comparisons: int = 1) -> int | None:
    """About how many seeds would decide by e-values, as `verdicts.seeds_needed`; None: over 1,000, or not known."""
    if difference.unit != SEEDS or not 2 <= difference.n < MOST_SEEDS:
        return None
    distance = abs(distance_to(difference, claimed, margin))

    def decided(n: int) -> bool:
        squares = distance**2 + difference.spread**2 * (n - 1) / n  # mean square of n values
        return squares > 0 and _log_ratio(n, distance / math.sqrt(squares), PRIOR) >= math.log(comparisons / LEVEL)

    # The evidence falls at first, if at all, and then grows with n, so the first n that decides is found by bisection.
    more = range(difference.n + 1, MOST_SEEDS + 1)
    if decided(more[0]):
        return more[0]
    return more[bisect.bisect_left(more, True, key=decided)] if decided(MOST_SEEDS) else None


def _log_e(x: Array, prior: float) -> float:
    """Log e-value of "the mean is positive", x [seeds]. It depends on x / ‖x‖ alone, so not on the scale."""
    n, norm = len(x), float(np.linalg.norm(x))
    return _log_ratio(n, float(x.sum()) / (math.sqrt(n) * norm) if norm > 0 else 0.0, prior)


def _log_ratio(n: int, a: float, prior: float) -> float:
    """The mixture in closed form; ``a``: mean over root mean square, between −1 and 1."""
    k = n * prior / (1 + n * prior)
    rest = max(1e-300, 1 - k * min(1.0, a * a))
    one_sided = max(1e-300, 2 * float(stdtr(max(1, n), a * math.sqrt(n * k / rest))))
    return -0.5 * math.log1p(n * prior) - n / 2 * math.log(rest) + math.log(one_sided)


def _exp(value: float) -> float:
    return math.exp(min(700.0, value))
