"""Comparisons of two arms: one difference per training seed or per start model, from a study's records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import UserError
from ..study import Study
from ..study.fingerprint import measured_starts
from ..study.runs import RunMatrix
from . import measures
from .ledger import Comparison
from .statistics import SEEDS, STARTS, Difference, difference, student

if TYPE_CHECKING:
    import pandas as pd

    from ..results.reader import StudyResults


def compare(results: StudyResults, c: Comparison) -> Difference:
    """The difference that a comparison asks for, in its unit.

    Over the training seeds that both arms have, or all start models that the study plans. UserError says what is
    missing.
    """
    if c.statistic in ("estimator", "round"):
        return _over_starts(results, c)
    if c.statistic == "accuracy":
        seeds = sorted(measures.paired_seeds(results, c.of, c.than))
        one, two = measures.paired_scores(results, c.of, c.than, seeds)
        return replace(difference(one, two).times(100), seeds=tuple(seeds))
    found = _by_seed(results, c)
    if not (seeds := sorted(int(seed) for seed in found.index)):
        what = c.metric or {"curve": "a learning curve"}.get(c.statistic, c.statistic)
        raise UserError(f"no seed with {what} of both {c.of!r} and {c.than!r}: run `snakemake all`.")
    return student(found.loc[seeds].to_numpy(dtype=float), SEEDS, seeds)


def _by_seed(results: StudyResults, c: Comparison) -> pd.Series:
    """The difference (or log2 ratio) of two arms by training seed."""
    if c.statistic in ("steps", "tokens"):
        return measures.reached(results, c.of, c.than, c.statistic)
    if c.statistic == "curve" and c.by == "samples":
        a, b = measures.areas_by_samples(results, c.of, c.than)
    elif c.statistic == "curve":
        a, b = (measures.area(results, arm) for arm in (c.of, c.than))
    else:
        a, b = (measures.late(results, arm, c.metric) for arm in (c.of, c.than))
    seeds = sorted(set(a.index) & set(b.index))
    return _differences(a.loc[seeds], b.loc[seeds], c)


def _over_starts(results: StudyResults, c: Comparison) -> Difference:
    """The difference over start models: of a round's reward, or of an estimator's column."""
    if (wanted := _one_stage(results.study, c)) is not None:
        raise UserError(f"{c.of} − {c.than}: needs {wanted}.")
    if c.statistic == "round":
        starts, what = measured_starts(results.study, results.study.rounds), "rounds"
        a, b = (measures.after_round(results, name, c.updates) for name in (c.of, c.than))
    else:
        starts, what = measured_starts(results.study, results.study.estimators), "estimators"
        a, b = (measures.estimated(results, name, c.metric, c.updates) for name in (c.of, c.than))
    both = a.index.intersection(b.index)
    # Of an estimator, each stage and distance is compared by itself; then their mean.
    found = _differences(a.loc[both], b.loc[both], c).groupby(level="seed").mean()
    if missing := sorted(set(starts) - set(found.index)):
        raise UserError(
            f"{what} of {c.of!r} and {c.than!r} are not measured on start model{'s' * (len(missing) > 1)} "
            f"{', '.join(map(str, missing))}: run `snakemake all`."
        )
    return student(found.to_numpy(dtype=float), STARTS, [int(start) for start in found.index])


def _one_stage(study: Study, c: Comparison) -> str | None:
    """What a comparison of rounds needs where they are measured at several stages (rule 6 of docs/design.md)."""
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
    """The seeds with which both arms of a comparison are trained, or evaluated if it is one of accuracy."""
    runs = matrix.evaluated if c.statistic == "accuracy" else matrix.runs
    one, two = ({run.seed for run in runs if run.arm == arm} for arm in (c.of, c.than))
    return sorted(one & two)


def lacking(study: Study, matrix: RunMatrix, c: Comparison) -> str | None:
    """The arms or measurements that a comparison needs and a study does not plan; None if it plans all."""
    if c.statistic in ("estimator", "round"):
        name = "estimators" if c.statistic == "estimator" else "rounds"
        section = study.estimators if c.statistic == "estimator" else study.rounds
        if section is None:
            return f"`{name}`"
        if missing := [method for method in (c.of, c.than) if method not in section.methods]:
            return f"{' and '.join(missing)} in `{name}`"
        if c.updates not in (None, *section.updates):
            return f"{c.updates} updates in `{name}`"
        return _one_stage(study, c)
    runs = matrix.evaluated if c.statistic == "accuracy" else matrix.runs
    there = {run.arm for run in runs}
    if missing := [arm for arm in (c.of, c.than) if arm not in there]:
        return f"{' and '.join(missing)} in {'evaluated ' if c.statistic == 'accuracy' else ''}experiments"
    return None
