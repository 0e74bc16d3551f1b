"""Comparisons of two arms: their differences from a study's records, and what they require of a study's plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import UserError
from ..study import Study
from ..study.comparable import pairs
from ..study.fingerprint import measured_starts
from ..study.runs import RunMatrix, run_matrix
from ..study.schema import Estimators, Rounds
from ..text import some
from . import measures
from .ledger import BEFORE, COSTS, EVALUATED, MEASURED_ONCE, Claim, Comparison, load_claims
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
    starts = measured_starts(results.study, _section(results.study, c))
    if c.statistic == "round":
        a, b = (measures.after_round(results, name, c.metric or "reward", c.updates) for name in (c.of, c.than))
    else:
        a, b = (measures.estimated(results, name, c.metric, c.updates) for name in (c.of, c.than))
    common = a.index.intersection(b.index)
    # Of an estimator, each stage and distance is compared by itself; then their mean.
    by_start = _differences(a.loc[common], b.loc[common], c).groupby(level="seed").mean()
    if missing := sorted(set(starts) - set(by_start.index)):
        raise UserError(
            f"{c.statistic}s of {c.of!r} and {c.than!r} are not measured on initial model{'s' * (len(missing) > 1)} "
            f"{', '.join(map(str, missing))}: run `snakemake all`."
        )
    return student(by_start.to_numpy(dtype=float), STARTS)


def _section(study: Study, c: Comparison) -> Estimators | Rounds | None:
    """The section of the study file that plans the measurements of a comparison."""
    return study.estimators if c.statistic == "estimator" else study.rounds


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


# ---- before training -------------------------------------------------------------------------------------------------


def plan_notes(study: Study) -> list[str]:
    """Notes on claims without verdicts: arms that are missing, arms without a common seed, and single seeds."""
    claims, matrix = load_claims(), run_matrix(study)
    notes = []
    without = {name: why for name, claim in claims.items() if (why := _missing(study, matrix, claim))}
    if len(without) == len(claims):
        notes.append("claims: none of the claims of the papers will have a verdict; the study lacks arms.")
    elif without:
        listed = some([f"{name} (needs {why})" for name, why in without.items()], 2)
        notes.append(f"claims: {len(without)} of {len(claims)} will have no verdict: {listed}.")
    planned = {name: claim for name, claim in claims.items() if name not in without}
    for name, c in _comparisons(planned):
        if c.replicates != STARTS and not _common_seeds(matrix, c):
            notes.append(f"claims: {name} compares {c.of} and {c.than}, which have no seed in common: no verdict.")
    single = [name for name, c in _comparisons(planned) if _replicates(study, matrix, c) == 1]
    if single:
        notes.append(f"claims: one seed decides nothing, so these stay undecided: {', '.join(dict.fromkeys(single))}.")
    return notes


def comparisons_asked(study: Study) -> int:
    """Number of comparisons that p-values are corrected over, in the largest ledger that the study plans."""
    matrix = run_matrix(study)
    planned = [claim for claim in load_claims().values() if not _missing(study, matrix, claim)]
    return max(sum(len(claim.comparisons) for claim in planned), len(pairs(study)))


def _comparisons(claims: dict[str, Claim]) -> Iterator[tuple[str, Comparison]]:
    for name, claim in claims.items():
        for c in claim.comparisons:
            yield name, c


def _missing(study: Study, matrix: RunMatrix, claim: Claim) -> str:
    """The requirement of the first comparison that the study does not plan; empty if it plans all."""
    return next(filter(None, (lacking(study, matrix, c) for c in claim.comparisons)), "")


def _replicates(study: Study, matrix: RunMatrix, c: Comparison) -> int:
    """The planned number of initial models or common training seeds of a comparison."""
    if c.replicates == STARTS:
        return len(measured_starts(study, _section(study, c)))
    return len(_common_seeds(matrix, c))


def _common_seeds(matrix: RunMatrix, c: Comparison) -> list[int]:
    """The seeds with which both arms of a comparison are trained, or evaluated if it is one of final models."""
    runs = matrix.evaluated if c.statistic in EVALUATED else matrix.runs
    one, two = ({run.seed for run in runs if run.arm == arm} for arm in (c.of, c.than))
    return sorted(one & two)


def lacking(study: Study, matrix: RunMatrix, c: Comparison) -> str | None:
    """The arms or measurements that a comparison needs and a study does not plan; None if it plans all."""
    if c.statistic in MEASURED_ONCE:
        name, section = f"{c.statistic}s", _section(study, c)
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
