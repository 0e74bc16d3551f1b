"""Measures of an arm or a pair of arms per seed, which figures and tables share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from .. import initial_models
from ..errors import NoResults, UserError
from ..paths import START
from ..results import StudyResults
from ..study import Study
from ..study.stages import start_seed
from .statistics import SEEDS, STARTS, Array, Difference, difference, student


def unit_of(study: Study | None) -> str:
    """The unit of replication of training runs: initial models where several seeds share each, else seeds."""
    return STARTS if study and initial_models.share_starts(study) else SEEDS


def by_unit(results: StudyResults, by_seed: pd.Series) -> Array:
    """A number per seed as one per unit of replication [units]; seeds without a number are left out."""
    there = by_seed.dropna().sort_index()
    return initial_models.by_unit(results.study, there.index, there.to_numpy(dtype=float))


def over_units(results: StudyResults, by_seed: pd.Series) -> Difference:
    """The mean of a number per seed, over the units of replication; NoResults if there is none."""
    values = by_unit(results, by_seed)
    if not len(values):
        raise NoResults("no seed has been trained for this: run `snakemake all`.")
    return student(values, unit_of(results.study))


def accuracy(results: StudyResults, arm: str) -> pd.Series:
    """Accuracy of the final model in percent, mean over benchmarks, by seed."""
    rows = results.evaluations[results.evaluations["arm"] == arm]
    if rows.empty:
        raise NoResults(f"no evaluation of {arm!r}: name it in an evaluated experiment, then `snakemake all`.")
    return 100 * rows.groupby("seed")["accuracy"].mean()


def accuracy_difference(
    results: StudyResults, arm: str, than: str, benchmarks: Sequence[str] | None = None, column: str = "per_problem"
) -> Difference:
    """The difference in the final models' accuracy of two arms, in points; arguments as of ``paired_scores``."""
    one, two, seeds = paired_scores(results, arm, than, benchmarks, column)
    a, b = ([initial_models.by_unit(results.study, seeds, scores) for scores in side] for side in (one, two))
    return difference(a, b, unit_of(results.study)).times(100)


def paired_scores(
    results: StudyResults, arm: str, than: str, benchmarks: Sequence[str] | None = None, column: str = "per_problem"
) -> tuple[list[Array], list[Array], list[int]]:
    """Scores of two arms: lists over benchmarks of [seeds, problems], and the seeds, in order.

    The seeds are those for which both arms were evaluated on all their common benchmarks. An initial model has the same
    scores for every seed that begins from it. ``benchmarks``: only these; ``column``: `per_problem` or `greedy`.
    NoResults if there is no such seed.
    """
    table, scores = results.evaluations, []
    for name in (arm, than):
        rows = table[table["arm"] == name]
        if rows.empty:
            raise NoResults(
                f"no evaluation of {name!r}: name it in an experiment that is evaluated, then `snakemake all`."
            )
        scores.append(rows.pivot(index="seed", columns="benchmark", values=column))
    for i, name in enumerate((arm, than)):
        if name == START:
            trained = scores[1 - i].index
            of_trained = scores[i].reindex([start_seed(results.study, int(seed)) for seed in trained])
            scores[i] = of_trained.set_axis(trained)
    names = [b for b in results.benchmarks if all(b in of_arm for of_arm in scores)]
    complete = [of_arm[names].dropna() for of_arm in scores]
    seeds = sorted(complete[0].index.intersection(complete[1].index))
    if not seeds:
        raise NoResults(f"no seed on which both {arm!r} and {than!r} were evaluated: run `snakemake all`.")
    names = [b for b in names if benchmarks is None or b in benchmarks]
    one, two = ([np.array(of_arm.loc[seeds, b].tolist(), dtype=float) for b in names] for of_arm in complete)
    return one, two, [int(seed) for seed in seeds]


def response_length(results: StudyResults, arm: str) -> pd.Series:
    """Tokens per sampled response of the final model on the benchmarks, by seed. NoResults without an evaluation."""
    rows = results.evaluations[results.evaluations["arm"] == arm]
    if rows.empty:
        raise NoResults(f"no evaluation of {arm!r}: name it in an evaluated experiment, then `snakemake all`.")
    sums = rows.assign(responses=rows["n"] * rows["problems"]).groupby("seed")[["tokens", "responses"]].sum()
    return sums["tokens"] / sums["responses"]


def length_difference(results: StudyResults, arm: str, than: str) -> Difference:
    """The difference in tokens per sampled response of the final models, paired."""
    return over_units(results, response_length(results, arm) - response_length(results, than))


def runs_of(results: StudyResults, arm: str) -> pd.DataFrame:
    """The steps of an arm's runs that have ended. NoResults if there is none."""
    rows = results.steps_of_arms.get(arm)
    if rows is None:
        raise NoResults(f"no run of {arm!r} has ended: name it in an experiment, then `snakemake all`.")
    return rows


def reached(results: StudyResults, arm: str, than: str, by: str) -> pd.Series:
    """The cost of ``arm`` to reach the final accuracy of ``than``, relative to the cost of ``than``: log2, by seed.

    ``by``: `steps`, `tokens` or `seconds`. Accuracy is on validation problems; the final accuracy is the mean over the
    last quarter of training. Infinite for a seed whose ``arm`` never reaches it. A cost of 0, before the first
    optimizer step, counts as 1. NoResults if no seed has both arms.
    """
    column = {"steps": "total_updates", "tokens": "total_tokens", "seconds": "total_seconds"}[by]
    costs, others = (_costs(results, name, column) for name in (arm, than))
    ratios = {}
    for seed in sorted(set(costs) & set(others)):
        level = _last_quarter(others[seed])["accuracy"].mean()
        cost, other = (
            float(curve[column][curve["accuracy"] >= level - 1e-12].min()) or 1.0
            for curve in (costs[seed], others[seed])
        )
        ratios[seed] = math.inf if math.isnan(cost) else math.log2(cost / other)
    if not ratios:
        raise NoResults(f"no seed of both {arm!r} and {than!r}: run `snakemake all`.")
    return pd.Series(ratios, dtype=float)


def _costs(results: StudyResults, arm: str, column: str) -> dict[int, pd.DataFrame]:
    """Learning curves by seed, with the cost up to each validation; without the validation of the initial model."""
    spent = {int(str(seed)): frame for seed, frame in runs_of(results, arm).groupby("seed")}
    curves = {}
    for seed, curve in learning_curve(results, arm).items():
        # A step validates before it samples, so only the steps before it have been made.
        before = spent[seed].set_index("step")[column].shift(1)
        curves[seed] = curve.assign(**{column: before.loc[curve["at"]].to_numpy()}).iloc[1:]
    return curves


def _last_quarter(curve: pd.DataFrame) -> pd.DataFrame:
    """The part of a learning curve after three quarters of training, and at least its last two validations."""
    late = curve[curve["at"] >= 0.75 * curve["at"].iloc[-1]]
    return late if len(late) > 1 else curve.iloc[-2:]


def learning_curve(results: StudyResults, arm: str) -> dict[int, pd.DataFrame]:
    """Validation accuracy of an arm by seed: columns `at` and `accuracy` (0 to 1), from the initial model to the end.

    `at` is the number of training steps made before a validation. Seeds with fewer than two are left out.
    """
    validated = runs_of(results, arm)[["seed", "step", "validation_accuracy"]].dropna()
    validated = validated.rename(columns={"step": "at", "validation_accuracy": "accuracy"})
    curves = {int(str(seed)): rows for seed, rows in validated.groupby("seed") if len(rows) > 1}
    if not curves:
        raise UserError(f"no run of {arm!r} was validated twice: lower `training.validate_every`.")
    return curves


def auc(results: StudyResults, arm: str) -> pd.Series:
    """Area under the learning curve: validation accuracy in percent, mean over all training steps, by seed."""
    areas = {}
    for seed, curve in learning_curve(results, arm).items():
        x, y = curve["at"].to_numpy(), curve["accuracy"].to_numpy()
        areas[seed] = 100 * float(np.trapezoid(y, x) / (x[-1] - x[0]))
    return pd.Series(areas, dtype=float)
