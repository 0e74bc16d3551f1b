"""Differences of the methods that a study compares, by regime, in area under the curve and final accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..study import Study
from ..study.comparable import Pair, pairs
from . import measures
from .statistics import LEVEL, Difference
from .verdicts import holm

if TYPE_CHECKING:
    from ..results.reader import StudyResults

Regime = tuple[tuple[str, object], ...]  # the training settings that vary between the arms that are compared
IDENTICAL, DIFFER, SMALL, OPEN = "identical", "differ", "differ by less than {:g} points", "not shown to differ"


class Contrast(NamedTuple):
    """An arm minus another in points, paired by seed. Replicates: seeds, or initial models that several seeds share."""

    pair: Pair
    area: Difference  # under the curve of validation accuracy: the primary endpoint
    sampled: Difference | None  # accuracy of the final model on the benchmarks; None: not evaluated
    greedy: Difference | None
    p: float  # of no difference in the area, corrected by Holm's method over all tested comparisons of the study
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

    Holm's correction is over all planned comparisons, except those with identical areas, for which there is no test.
    """
    planned = pairs(results.study)
    areas: dict[Pair, Difference] = {}
    for pair in planned:
        try:
            one, two = (measures.area(results, arm.name) for arm in (pair.arm, pair.reference))
            areas[pair] = measures.over_units(results, one - two)
        except UserError:
            continue
    tested = [pair for pair in areas if any(areas[pair].values)]
    missing = [1.0] * (len(planned) - len(areas))
    p = dict(zip(tested, holm([areas[pair].p for pair in tested] + missing), strict=False))
    small = dict(zip(tested, holm([_beyond(pair, areas[pair]) for pair in tested] + missing), strict=False))
    compared = []
    for pair, area in areas.items():
        evaluated = results.study.experiments[pair.experiment].evaluate
        sampled = _accuracy(results, pair, "per_problem") if evaluated else None
        greedy = _accuracy(results, pair, "greedy") if evaluated else None
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


# ---- words ----------------------------------------------------------------------------------------------------------


def nothing_text(study: Study, compared: Sequence[Contrast]) -> str:
    """The sentence of a regime in which no comparison is decided (rule 3 of docs/design.md)."""
    no_ratio = [{arm.method(study).ratio.name == "none" for arm in (c.pair.arm, c.pair.reference)} for c in compared]
    even = ", not even leaving the ratio out" if {True, False} in no_ratio else ""
    return f"Nothing is shown to matter here{even}, so ties are no evidence that methods are equal."


def regime_text(regime: Regime) -> str:
    """`rollouts 48 steps old, learning rate 0.0002`; `on-policy` for rollouts of age 0."""
    words = {"ahead": lambda v: f"rollouts {_steps(v)} old" if v else "on-policy"}
    parts = [words.get(key, lambda v, key=key: f"{key.replace('_', ' ')} {v}")(value) for key, value in regime]
    return ", ".join(parts) or "the study's settings"


def pair_text(study: Study, pair: Pair, label: Callable[[str], str]) -> str:
    """`token, clipped − no ratio`; where only the age of rollouts differs, `no ratio: 48 steps old − on-policy`."""
    one, other = pair.arm, pair.reference
    if one.method_name != other.method_name:
        return f"{label(one.method_name)} − {label(other.method_name)}"
    return f"{label(one.method_name)}: {_steps(one.training(study).ahead)} old − on-policy"


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def effect_text(effect: Difference | None) -> str:
    """`+4.1 [+2.0, +6.2]`; empty for None."""
    return "" if effect is None else f"{effect.mean:+.1f} [{effect.low:+.1f}, {effect.high:+.1f}]"


def sentences(results: StudyResults, compared: Sequence[Contrast], label: Callable[[str], str] = str) -> list[str]:
    """One sentence per regime, then one per comparison of whole methods."""
    regimes = [
        _regime_sentence(results.study, regime, group, label)
        for regime, group in by_regime(results.study, compared).items()
    ]
    return regimes + [_own_sentence(results.study, c, label) for c in compared if c.pair.whole]


def _regime_sentence(study: Study, regime: Regime, compared: Sequence[Contrast], label: Callable[[str], str]) -> str:
    start = regime_text(regime)
    start = start[0].upper() + start[1:]
    training = compared[0].pair.arm.training(study)
    on_policy = not training.ahead and training.updates_of_batch == 1
    if not (on_policy or any(c.decided for c in compared)):
        nothing = nothing_text(study, compared)
        return f"{start}: {nothing[0].lower()}{nothing[1:]}"
    parts = []
    for outcome in dict.fromkeys(c.outcome for c in sorted(compared, key=lambda c: c.p)):
        chosen = [c for c in compared if c.outcome == outcome]
        names = [pair_text(study, c.pair, label) for c in chosen]
        if outcome == IDENTICAL:
            finals = [abs(d.mean) for c in chosen for d in (c.sampled, c.greedy) if d is not None]
            apart = f" (final accuracy differs by at most {max(finals):.1f} points)" if any(finals) else ""
            parts.append(f"Equal areas{', since every ratio is 1' * on_policy}{apart}: {'; '.join(names)}")
        elif outcome == DIFFER:
            effects = [f"{effect_text(c.area)}{' (endpoints disagree)' * c.disagreement}" for c in chosen]
            parts.append("; ".join(f"{name} {effect}" for name, effect in zip(names, effects, strict=True)))
        else:
            means = sorted(c.area.mean for c in chosen)
            between = f"{means[0]:+.1f} to {means[-1]:+.1f}" if len(means) > 1 else f"{means[0]:+.1f}"
            parts.append(f"{outcome[0].upper()}{outcome[1:]} ({between}): {'; '.join(names)}")
    return f"{start}: {'. '.join(parts)}."


def _own_sentence(study: Study, c: Contrast, label: Callable[[str], str]) -> str:
    d, what = (c.sampled, "accuracy") if c.sampled else (c.area, "area under the learning curve")
    over = f"over {d.n} {d.unit}" if d.n > 1 else f"one {d.unit.removesuffix('s')}, so there is no interval"
    effect = effect_text(d) if d.n > 1 else f"{d.mean:+.1f}"
    return f"{pair_text(study, c.pair, label)}: {effect} points of {what}, {over}."


# ---- differences ----------------------------------------------------------------------------------------------------


def _beyond(pair: Pair, area: Difference) -> float:
    """The p-value of a difference beyond the margin, by two one-sided tests; 1 without a margin."""
    return 1.0 if pair.margin is None else max(area.above(-pair.margin), area.below(pair.margin))


def _accuracy(results: StudyResults, pair: Pair, column: str) -> Difference | None:
    """Difference in final accuracy of sampled (`per_problem`) or `greedy` responses; None without records of them."""
    try:
        return measures.accuracy_difference(results, pair.arm.name, pair.reference.name, column=column)
    except UserError:
        return None
