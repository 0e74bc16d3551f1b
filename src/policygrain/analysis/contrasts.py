"""Differences between the arms that a study compares, at both endpoints and in response length."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError
from ..study.runs import Pair, pairs
from . import measures
from .statistics import LEVEL, Difference, holm

if TYPE_CHECKING:
    from ..results import StudyResults

IDENTICAL, DIFFER, SMALL, OPEN = "identical", "differ", "differ by less than {:g} points", "inconclusive"
# Replicates from which a comparison is tested: AUCs are multiples of a share, so two differences are easily equal.
FEWEST, TOO_FEW = 3, "too few seeds"


class Contrast(NamedTuple):
    """An arm minus another, paired by seed. Replicates: seeds, or initial models that several seeds share."""

    pair: Pair
    auc: Difference  # mean validation accuracy during training (AUC), in points: the primary endpoint
    sampled: Difference | None  # accuracy of the final model on the benchmarks, in points; None: not evaluated
    greedy: Difference | None
    length: Difference | None  # tokens per sampled response of the final model
    p: float  # of no difference in AUC, corrected by Holm's method
    p_small: float  # of a difference in AUC beyond the margin on either side, likewise; 1 without a margin

    @property
    def decided(self) -> bool:
        """Whether the arms are shown to differ in AUC."""
        return self.p < LEVEL

    @property
    def identical(self) -> bool:
        """Whether all units have equal AUCs to the last digit, as on-policy, where every ratio is 1."""
        return not any(self.auc.values)

    @property
    def outcome(self) -> str:
        """Whether AUCs are identical, differ, or differ by less than the margin; or why none of these is shown."""
        if self.decided or self.identical:
            return DIFFER if self.decided else IDENTICAL
        if self.auc.n < FEWEST:
            return TOO_FEW
        return SMALL.format(self.pair.margin) if self.p_small < LEVEL else OPEN

    @property
    def disagreement(self) -> bool:
        """Whether an interval of final accuracy excludes 0 on the other side than that of AUC."""
        ends = [d for d in (self.auc, self.sampled, self.greedy) if d is not None]
        return any(d.low > 0 for d in ends) and any(d.high < 0 for d in ends)


def contrasts(results: StudyResults) -> list[Contrast]:
    """All comparisons of the study that have records: those of one part first, in each kind those with the smallest p.

    Holm's correction is over the comparisons that experiments plan, and separately over those of whole methods, without
    those with identical AUCs or fewer than three replicates, for which there is no test.
    """
    planned = pairs(results.study)
    aucs: dict[Pair, Difference] = {}
    for pair in planned:
        try:
            one, two = (measures.auc(results, arm.name) for arm in (pair.arm, pair.reference))
            aucs[pair] = measures.over_units(results, one - two)
        except UserError:
            continue
    p: dict[Pair, float] = {}
    small: dict[Pair, float] = {}
    for whole in (False, True):
        of_kind = {pair: auc for pair, auc in aucs.items() if pair.whole == whole}
        tested = [pair for pair, auc in of_kind.items() if any(auc.values) and auc.n >= FEWEST]
        missing = [1.0] * sum(pair.whole == whole and pair not in aucs for pair in planned)
        p |= zip(tested, holm([aucs[pair].p for pair in tested] + missing), strict=False)
        small |= zip(tested, holm([_beyond(pair, aucs[pair]) for pair in tested] + missing), strict=False)
    found = []
    for pair, auc in aucs.items():
        arms = results, pair.arm.name, pair.reference.name
        final = (
            _there(measures.accuracy_difference, *arms),
            _there(measures.accuracy_difference, *arms, column="greedy"),
            _there(measures.length_difference, *arms),
        )
        found.append(Contrast(pair, auc, *final, p.get(pair, 1.0), small.get(pair, 1.0)))
    return sorted(found, key=lambda c: (c.pair.whole, c.p))


def _beyond(pair: Pair, auc: Difference) -> float:
    """The p-value of a difference beyond the margin, by two one-sided tests; 1 without a margin."""
    return 1.0 if pair.margin is None else max(auc.above(-pair.margin), auc.below(pair.margin))


def _there(measure: Callable[..., Difference], *arms: Any, **options: str) -> Difference | None:
    """A difference of the final models; None without records of them."""
    try:
        return measure(*arms, **options)
    except UserError:
        return None
