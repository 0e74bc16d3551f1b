"""Comparisons of two arms: one difference per training seed or per initial model, from a study's records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import UserError
from ..study import Study
from ..study.fingerprint import measured_starts
from ..study.runs import RunMatrix
from . import measures
from .ledger import BEFORE, COSTS, EVALUATED, MEASURED_ONCE, Comparison
from .statistics import LEVEL, STARTS, Difference, ranked, student

if TYPE_CHECKING:
    import pandas as pd

    from ..results.reader import StudyResults


class NotFlat(UserError):
    """Learning curves still rise at the end of training, so the cost of convergence is unknown."""


def compare(results: StudyResults, c: Comparison) -> Difference:
    """The difference that a comparison asks for, in its unit.

    Over the training seeds that both arms have, or all initial models that the study plans. UserError names
    missing records. NotFlat if costs of convergence are compared and the curves of ``than`` have not flattened.
    """
    if c.statistic in MEASURED_ONCE:
        return _over_starts(results, c)
    if c.statistic == "accuracy":
        return measures.accuracy_difference(results, c.of, c.than)
    if c.statistic in COSTS and (rise := measures.late_rise(results, c.than)).above(0.0) < LEVEL:
        raise NotFlat(
            f"Curves have not flattened: in the last quarter of training validation accuracy of {c.than!r} rises "
            f"by {rise.mean:.1f} points [{rise.low:.1f}, {rise.high:.1f}] over {rise.n} {rise.unit}."
        )
    values = measures.by_unit(results, _by_seed(results, c))
    if not len(values):
        raise UserError(f"no seed with {c.statistic} of both {c.of!r} and {c.than!r}: run `snakemake all`.")
    return (ranked if c.statistic in COSTS else student)(values, measures.unit_of(results.study))


def _by_seed(results: StudyResults, c: Comparison) -> pd.Series:
    """The difference (or log2 ratio) of two arms by training seed."""
    if c.statistic in COSTS:
        return measures.reached(results, c.of, c.than, c.statistic)
    if c.statistic == "benchmarks":
        return measures.benchmarks_won(results, c.of, c.than)
    return measures.largest_drop(results, c.of) - measures.largest_drop(results, c.than)


def _over_starts(results: StudyResults, c: Comparison) -> Difference:
    """The difference over initial models: of a round's reward or entropy, or of an estimator's column."""
    if (wanted := _one_stage(results.study, c)) is not None:
        raise UserError(f"{c.of} − {c.than}: needs {wanted}.")
    if c.statistic == "round":
        starts, what = measured_starts(results.study, results.study.rounds), "rounds"
        a, b = (measures.after_round(results, name, c.metric or "reward", c.updates) for name in (c.of, c.than))
    else:
        starts, what = measured_starts(results.study, results.study.estimators), "estimators"
        a, b = (measures.estimated(results, name, c.metric, c.updates) for name in (c.of, c.than))
    both = a.index.intersection(b.index)
    # Of an estimator, each stage and distance is compared by itself; then their mean.
    by_start = _differences(a.loc[both], b.loc[both], c).groupby(level="seed").mean()
    if missing := sorted(set(starts) - set(by_start.index)):
        raise UserError(
            f"{what} of {c.of!r} and {c.than!r} are not measured on initial model{'s' * (len(missing) > 1)} "
            f"{', '.join(map(str, missing))}: run `snakemake all`."
        )
    return student(by_start.to_numpy(dtype=float), STARTS)


def _one_stage(study: Study, c: Comparison) -> str | None:
    """The requirement that a comparison of rounds at several stages lacks (rule 6 of docs/design.md), or None."""
    stages = study.rounds.steps if study.rounds and c.statistic == "round" else []
    if len(stages) < 2:
        return None
    return f"one stage in `rounds.steps`, not {len(stages)}: a mean over stages can hide effects of opposite sign"


def _differences(a: pd.Series, b: pd.Series, c: Comparison) -> pd.Series:
    """a − b, or log2(a / b)."""
    if not c.log:
        return a - b
    for name, values in ((c.of, a), (c.than, b)):
        if (values <= 0).any():
            raise UserError(
                f"{c.metric} of {name!r} is {values.min():.3g} at {values.idxmin()}, which has no logarithm."
            )
    return (a / b).apply(math.log2)


def common_seeds(matrix: RunMatrix, c: Comparison) -> list[int]:
    """The seeds with which both arms of a comparison are trained, or evaluated if it is one of final models."""
    runs = matrix.evaluated if c.statistic in EVALUATED else matrix.runs
    one, two = ({run.seed for run in runs if run.arm == arm} for arm in (c.of, c.than))
    return sorted(one & two)


def lacking(study: Study, matrix: RunMatrix, c: Comparison) -> str | None:
    """The arms or measurements that a comparison needs and a study does not plan; None if it plans all."""
    if c.statistic in MEASURED_ONCE:
        name = "estimators" if c.statistic == "estimator" else "rounds"
        section = study.estimators if c.statistic == "estimator" else study.rounds
        if section is None:
            return f"`{name}`"
        if missing := [method for method in (c.of, c.than) if method not in (*section.methods, BEFORE)]:
            return f"{' and '.join(missing)} in `{name}`"
        if c.updates not in (None, *section.updates):
            return f"{c.updates} updates in `{name}`"
        return _one_stage(study, c)
    runs = matrix.evaluated if c.statistic in EVALUATED else matrix.runs
    there = {run.arm for run in runs}
    if missing := [arm for arm in (c.of, c.than) if arm not in there]:
        return f"{' and '.join(missing)} in {'evaluated ' if c.statistic in EVALUATED else ''}experiments"
    return None
