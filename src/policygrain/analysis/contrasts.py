"""Differences of methods that differ in one part, regime by regime, with final accuracy beside the primary endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import UserError
from ..study.comparable import Pair, pairs
from . import measures
from .statistics import LEVEL, Difference, difference, student
from .verdicts import holm

if TYPE_CHECKING:
    from ..results.reader import StudyResults

Regime = tuple[tuple[str, object], ...]  # training settings that the arms of a comparison share


class Contrast(NamedTuple):
    """A method minus the reference of its experiment, in points, paired by training seed."""

    pair: Pair
    area: Difference  # under the curve of validation accuracy: the primary endpoint
    sampled: Difference | None  # accuracy of the final model on the benchmarks; None: not evaluated
    greedy: Difference | None
    p: float  # of no difference in the area, corrected by Holm's method over all contrasts of the experiment

    @property
    def decided(self) -> bool:
        """Whether the methods are shown to differ in the area."""
        return self.p < LEVEL

    @property
    def disagreement(self) -> bool:
        """Whether an interval of final accuracy excludes 0 on the other side than that of the area."""
        ends = [d for d in (self.area, self.sampled, self.greedy) if d is not None]
        return any(d.low > 0 for d in ends) and any(d.high < 0 for d in ends)


def contrasts(results: StudyResults) -> dict[str, list[Contrast]]:
    """Experiment → its contrasts. UserError if a run of one of them is missing."""
    found: dict[str, list[Contrast]] = {}
    by_experiment: dict[str, list[Pair]] = {}
    for pair in pairs(results.study):
        by_experiment.setdefault(pair.experiment, []).append(pair)
    for name, asked in by_experiment.items():
        areas = [_area(results, pair) for pair in asked]
        corrected = holm([area.p for area in areas])
        evaluated = results.study.experiments[name].evaluate
        for pair, area, p in zip(asked, areas, corrected, strict=True):
            sampled, greedy = _accuracies(results, pair) if evaluated else (None, None)
            found.setdefault(name, []).append(Contrast(pair, area, sampled, greedy, p))
    return found


def by_regime(found: Sequence[Contrast]) -> dict[Regime, list[Contrast]]:
    """The contrasts of each combination of training settings."""
    regimes: dict[Regime, list[Contrast]] = {}
    for contrast in found:
        regimes.setdefault(contrast.pair.arm.settings, []).append(contrast)
    return regimes


def _area(results: StudyResults, pair: Pair) -> Difference:
    values = (measures.area(results, pair.arm.name) - measures.area(results, pair.reference.name)).dropna()
    if values.empty:
        raise UserError(f"{pair.arm.name} and {pair.reference.name} have no seed in common: run `snakemake all`.")
    return student(values.to_numpy(dtype=float), seeds=[int(seed) for seed in values.index])


def _accuracies(results: StudyResults, pair: Pair) -> tuple[Difference, Difference | None]:
    """Of samples, and of greedily decoded responses where there are any."""
    arms = (pair.arm.name, pair.reference.name)
    sampled = difference(*measures.paired_scores(results, *arms)).times(100)
    table = results.evaluations
    seeds = measures.paired_seeds(results, *arms)
    rows = [table[(table["arm"] == arm) & table["seed"].isin(seeds)].sort_values("seed") for arm in arms]
    if any(found["greedy"].isna().any() for found in rows):
        return sampled, None
    one, two = (
        [np.array(found[found["benchmark"] == b]["greedy"].tolist(), dtype=float) for b in results.benchmarks]
        for found in rows
    )
    return sampled, difference(one, two).times(100)
