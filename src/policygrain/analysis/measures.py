"""Measures of an arm or a pair of arms per seed, and the differences between the arms that a study compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..errors import NoResults, UserError
from ..paths import START
from ..results import StudyResults, mean_by_unit, share_starts
from ..study import Study
from ..study.dependencies import start_seed
from ..study.runs import Pair, pairs
from .statistics import LEVEL, SEEDS, STARTS, Array, Difference, Estimate, accuracy, difference, holm, student


def unit_of(study: Study | None) -> str:
    """The unit of replication of training runs: initial models where several seeds share each, else seeds."""
    return STARTS if study and share_starts(study) else SEEDS


def by_unit(results: StudyResults, by_seed: pd.Series) -> Array:
    """A number per seed as one per unit of replication [units]; seeds without a number are left out."""
    there = by_seed.dropna().sort_index()
    return mean_by_unit(results.study, there.index, there.to_numpy(dtype=float))


def over_units(results: StudyResults, by_seed: pd.Series) -> Difference:
    """The mean of a number per seed, over the units of replication; NoResults if there is none."""
    values = by_unit(results, by_seed)
    if not len(values):
        raise NoResults("no seed has been trained for this: run `snakemake all`.")
    return student(values, unit_of(results.study))


def _evaluations(results: StudyResults, arm: str) -> pd.DataFrame:
    rows = results.evaluations[results.evaluations["arm"] == arm]
    if rows.empty:
        raise NoResults(f"no evaluation of {arm!r}: name it in an experiment that is evaluated, then `snakemake all`.")
    return rows


def final_accuracy(
    results: StudyResults, arm: str, *benchmarks: str, column: str = "per_problem", clean: bool = False
) -> Estimate:
    """Accuracy of the final models of an arm in percent, mean over these benchmarks, by default those averaged."""
    found = accuracy(
        [results.scores(arm, name, clean, column) for name in benchmarks or results.averaged], unit_of(results.study)
    )
    return found._replace(mean=100 * found.mean, low=100 * found.low, high=100 * found.high)


def accuracy_difference(
    results: StudyResults, arm: str, than: str, *benchmarks: str, column: str = "per_problem"
) -> Difference:
    """The difference in the final models' accuracy of two arms in points, paired by seed. NoResults if none has both.

    The initial model, as ``than``, has the same scores for every seed that begins from it.
    """
    names = list(benchmarks or results.averaged)
    one, two = (
        _evaluations(results, name).pivot(index="seed", columns="benchmark", values=column)[names].dropna()
        for name in (arm, than)
    )
    if than == START:
        two = two.reindex([start_seed(results.study, int(seed)) for seed in one.index]).set_axis(one.index).dropna()
    seeds = sorted(one.index.intersection(two.index))
    if not seeds:
        raise NoResults(f"no seed on which both {arm!r} and {than!r} were evaluated: run `snakemake all`.")
    a, b = (
        [mean_by_unit(results.study, seeds, np.array(side.loc[seeds, name].tolist(), dtype=float)) for name in names]
        for side in (one, two)
    )
    return difference(a, b, unit_of(results.study)).times(100)


def response_length(results: StudyResults, arm: str) -> pd.Series:
    """Tokens per sampled response of the final model on the benchmarks, by seed. NoResults without an evaluation."""
    rows = _evaluations(results, arm)
    responses = rows["outcomes"].map(lambda counts: sum(counts.values()))
    sums = rows.assign(responses=responses).groupby("seed")[["tokens", "responses"]].sum()
    return sums["tokens"] / sums["responses"]


def length_difference(results: StudyResults, arm: str, than: str) -> Difference:
    return over_units(results, response_length(results, arm) - response_length(results, than))


COSTS = {"steps": "total_updates", "tokens": "total_tokens", "seconds": "total_seconds"}


def learning_curve(results: StudyResults, arm: str) -> dict[int, pd.DataFrame]:
    """Validation accuracy of an arm by seed: columns `at` and `accuracy` (0 to 1), from the initial model to the end.

    `at` is the number of training steps before a validation, and the keys of `COSTS` are what they cost. Without runs
    that have not ended or have one validation. NoResults without a run, UserError without a curve.
    """
    if (rows := results.steps_of_arms.get(arm)) is None:
        raise NoResults(f"no run of {arm!r} has ended: name it in an experiment, then `snakemake all`.")
    curves = {}
    for seed, run in rows.groupby("seed"):
        # A step validates before it samples, so only the steps before it have been made.
        spent = run.reindex(columns=[*COSTS.values()]).shift(1).set_axis([*COSTS], axis="columns")
        curve = spent.assign(at=run["step"], accuracy=run["validation_accuracy"]).dropna(subset="accuracy")
        if len(curve) > 1:
            curves[int(str(seed))] = curve
    if not curves:
        raise UserError(f"no run of {arm!r} was validated twice: lower `training.validate_every`.")
    return curves


def reached(results: StudyResults, arm: str, than: str, by: str) -> pd.Series:
    """The cost of ``arm`` to reach the final accuracy of ``than``, relative to the cost of ``than``: log2, by seed.

    ``by``: a key of `COSTS`. The final accuracy is the mean over the validations of the last quarter of training, at
    least two. Infinite where ``arm`` never reaches it, NaN where the cost is not known. A cost of 0 counts as 1.
    NoResults if no seed has both arms.
    """
    curves, others = (learning_curve(results, name) for name in (arm, than))
    ratios = {}
    for seed in sorted(set(curves) & set(others)):
        # The initial model has cost nothing.
        curve, other = curves[seed].iloc[1:], others[seed].iloc[1:]
        late = other[other["at"] >= 0.75 * other["at"].iloc[-1]]
        level = (late if len(late) > 1 else other.iloc[-2:])["accuracy"].mean() - 1e-12
        costs = [float(one.loc[one["accuracy"] >= level, by].min()) or 1.0 for one in (curve, other)]
        ratios[seed] = math.log2(costs[0] / costs[1]) if (curve["accuracy"] >= level).any() else math.inf
    if not ratios:
        raise NoResults(f"no seed of both {arm!r} and {than!r}: run `snakemake all`.")
    return pd.Series(ratios, dtype=float)


def auc(results: StudyResults, arm: str) -> pd.Series:
    """Area under the learning curve: validation accuracy in percent, mean over all training steps, by seed."""
    areas = {}
    for seed, curve in learning_curve(results, arm).items():
        x, y = curve["at"].to_numpy(), curve["accuracy"].to_numpy()
        areas[seed] = 100 * float(np.trapezoid(y, x) / (x[-1] - x[0]))
    return pd.Series(areas, dtype=float)


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
        return self.p < LEVEL

    @property
    def identical(self) -> bool:
        """Whether all units are equal to the last digit, as on-policy, where every ratio is 1."""
        return not any(d and any(d.values) for d in (self.auc, self.sampled, self.greedy, self.length))

    @property
    def outcome(self) -> str:
        """Whether the arms are identical, or AUCs differ, or by less than the margin; or why none of it is shown."""
        if self.decided or self.identical:
            return DIFFER if self.decided else IDENTICAL
        if self.auc.n < FEWEST:
            return TOO_FEW
        return SMALL.format(self.pair.margin) if self.p_small < LEVEL else OPEN

    @property
    def disagreement(self) -> bool:
        """Whether an interval of final accuracy excludes 0 on the other side than that of AUC."""
        ends = [d for d in (self.auc, self.sampled, self.greedy) if d is not None and d.replicated]
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
            one, two = (auc(results, arm.name) for arm in (pair.arm, pair.reference))
            aucs[pair] = over_units(results, one - two)
        except UserError:
            continue
    p: dict[Pair, float] = {}
    small: dict[Pair, float] = {}
    for whole in (False, True):
        of_kind = {pair: auc for pair, auc in aucs.items() if pair.whole == whole}
        tested = [pair for pair, auc in of_kind.items() if any(auc.values) and auc.n >= FEWEST]
        missing = [1.0] * sum(pair.whole == whole and pair not in aucs for pair in planned)
        p |= zip(tested, holm([aucs[pair].p for pair in tested] + missing), strict=False)
        beyond = [  # by two one-sided tests
            1.0 if pair.margin is None else max(aucs[pair].above(-pair.margin), aucs[pair].below(pair.margin))
            for pair in tested
        ]
        small |= zip(tested, holm(beyond + missing), strict=False)
    found = []
    for pair, area in aucs.items():
        arms = results, pair.arm.name, pair.reference.name
        sampled, greedy = (there(accuracy_difference, *arms, column=c) for c in ("per_problem", "greedy"))
        length = there(length_difference, *arms)
        found.append(Contrast(pair, area, sampled, greedy, length, p.get(pair, 1.0), small.get(pair, 1.0)))
    return sorted(found, key=lambda c: (c.pair.whole, c.p))


def there(measure: Callable[..., Difference], *arms: Any, **options: str) -> Difference | None:
    try:
        return measure(*arms, **options)
    except UserError:
        return None
