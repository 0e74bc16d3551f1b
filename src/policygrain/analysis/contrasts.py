"""Differences of the methods that a study compares, by regime, in area under the curve and final accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..study import Study
from ..study.comparable import Pair, pairs
from . import measures
from .statistics import LEVEL, Difference
from .verdicts import holm

if TYPE_CHECKING:
    from ..results import StudyResults

Regime = tuple[tuple[str, object], ...]  # the training settings that vary between the arms that are compared
IDENTICAL, DIFFER, SMALL, OPEN = "identical", "differ", "differ by less than {:g} points", "not shown to differ"


class Contrast(NamedTuple):
    """An arm minus another in points, paired by seed. Replicates: seeds, or initial models that several seeds share."""

    pair: Pair
    area: Difference  # under the curve of validation accuracy: the primary endpoint
    sampled: Difference | None  # accuracy of the final model on the benchmarks; None: not evaluated
    greedy: Difference | None
    p: float  # of no difference in the area, corrected by Holm's method
    p_small: float  # of a difference in the area beyond the margin on either side, likewise; 1 without a margin

    @property
    def decided(self) -> bool:
        """Whether the methods are shown to differ in the area."""
        return self.p < LEVEL

    @property
    def identical(self) -> bool:
        """Whether all units have equal areas to the last digit, as on-policy, where every ratio is 1."""
        return not any(self.area.values)

    @property
    def outcome(self) -> str:
        """Whether the areas are identical, differ, differ by less than the margin, or are not shown to differ."""
        if self.decided or self.identical:
            return DIFFER if self.decided else IDENTICAL
        return SMALL.format(self.pair.margin) if self.p_small < LEVEL else OPEN

    @property
    def disagreement(self) -> bool:
        """Whether an interval of final accuracy excludes 0 on the other side than that of the area."""
        ends = [d for d in (self.area, self.sampled, self.greedy) if d is not None]
        return any(d.low > 0 for d in ends) and any(d.high < 0 for d in ends)


def contrasts(results: StudyResults) -> list[Contrast]:
    """All comparisons of the study that have records.

    Holm's correction is over the comparisons that experiments plan, and separately over those of methods with their
    bases, without those with identical areas, for which there is no test.
    """
    planned = pairs(results.study)
    areas: dict[Pair, Difference] = {}
    for pair in planned:
        try:
            one, two = (measures.area(results, arm.name) for arm in (pair.arm, pair.reference))
            areas[pair] = measures.over_units(results, one - two)
        except UserError:
            continue
    p: dict[Pair, float] = {}
    small: dict[Pair, float] = {}
    for whole in (False, True):
        tested = [pair for pair in areas if pair.whole == whole and any(areas[pair].values)]
        missing = [1.0] * sum(pair.whole == whole and pair not in areas for pair in planned)
        p |= zip(tested, holm([areas[pair].p for pair in tested] + missing), strict=False)
        small |= zip(tested, holm([_beyond(pair, areas[pair]) for pair in tested] + missing), strict=False)
    compared = []
    for pair, area in areas.items():
        sampled, greedy = (_accuracy(results, pair, column) for column in ("per_problem", "greedy"))
        compared.append(Contrast(pair, area, sampled, greedy, p.get(pair, 1.0), small.get(pair, 1.0)))
    return compared


def by_regime(study: Study, compared: Sequence[Contrast]) -> dict[Regime, list[Contrast]]:
    """The contrasts of each combination of the settings that vary, without those of whole methods."""
    keys = dict.fromkeys(key for e in study.experiments.values() if e.reference or e.compare for key in e.vary)
    regimes: dict[Regime, list[Contrast]] = {}
    for contrast in (c for c in compared if not c.pair.whole):
        training = contrast.pair.arm.training(study)
        regimes.setdefault(tuple((key, getattr(training, key)) for key in keys), []).append(contrast)
    return regimes


def _beyond(pair: Pair, area: Difference) -> float:
    """The p-value of a difference beyond the margin, by two one-sided tests; 1 without a margin."""
    return 1.0 if pair.margin is None else max(area.above(-pair.margin), area.below(pair.margin))


def _accuracy(results: StudyResults, pair: Pair, column: str) -> Difference | None:
    """Difference in final accuracy of sampled (`per_problem`) or `greedy` responses; None without records of them."""
    try:
        return measures.accuracy_difference(results, pair.arm.name, pair.reference.name, column=column)
    except UserError:
        return None
