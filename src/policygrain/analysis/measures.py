"""Numbers per seed that are used by several figures and claims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..errors import UserError
from ..results.layout import START
from ..results.reader import StudyResults
from .statistics import Array

WINDOW = 5  # steps over which the accuracy of samples is smoothed


def accuracy(results: StudyResults, arm: str) -> pd.Series:
    """Accuracy of the final model in percent, mean over benchmarks, by seed."""
    rows = results.evaluations[results.evaluations["arm"] == arm]
    if rows.empty:
        raise UserError(f"no evaluation of {arm!r}: name it in an evaluated experiment, then `snakemake all`.")
    return 100 * rows.groupby("seed")["accuracy"].mean()


def paired_scores(
    results: StudyResults,
    arm: str,
    than: str,
    seeds: Sequence[int] | None = None,
    benchmarks: Sequence[str] | None = None,
) -> tuple[list[Array], list[Array]]:
    """Scores of two arms on the seeds that both have: lists over benchmarks of [seeds, problems], seeds in order.

    ``seeds``: only these, which both have; ``benchmarks``: only these. A start model that all runs begin from is
    evaluated once, and has that score with every seed.
    """
    names, by_seed = _evaluated(results, arm, than)
    names = [b for b in names if benchmarks is None or b in benchmarks]
    if not (chosen := paired_seeds(results, arm, than) if seeds is None else list(seeds)):
        raise UserError(f"no seed on which both {arm!r} and {than!r} were evaluated: run `snakemake all`.")
    one, two = ([np.array(found[b].loc[chosen].tolist(), dtype=float) for b in names] for found in by_seed)
    return one, two


def paired_seeds(results: StudyResults, arm: str, than: str) -> list[int]:
    """The seeds on which both arms were evaluated on all their common benchmarks."""
    _, by_seed = _evaluated(results, arm, than)
    return sorted(set.intersection(*(set(s.index) for found in by_seed for s in found.values())))


def _evaluated(results: StudyResults, arm: str, than: str) -> tuple[list[str], list[dict[str, pd.Series]]]:
    """The benchmarks of both arms, and for each arm the scores per problem by benchmark and seed."""
    table = results.evaluations
    rows = [table[table["arm"] == name] for name in (arm, than)]
    for name, found in zip((arm, than), rows, strict=True):
        if found.empty:
            raise UserError(
                f"no evaluation of {name!r}: name it in an experiment that is evaluated, then `snakemake all`."
            )
    names = [b for b in results.benchmarks if all((found["benchmark"] == b).any() for found in rows)]
    by_seed = [{b: found[found["benchmark"] == b].set_index("seed")["per_problem"] for b in names} for found in rows]
    if has_one_start(results):
        for name, scores, others in ((arm, by_seed[0], by_seed[1]), (than, by_seed[1], by_seed[0])):
            for b in names if name == START else ():
                scores[b] = pd.Series([scores[b].iloc[0]] * len(others[b]), index=others[b].index)
    return names, by_seed


def has_one_start(results: StudyResults) -> bool:
    """Whether all runs begin from one start model that was evaluated once, which is so with `model.starts: 1`."""
    return results.study.model.starts == 1


def late(results: StudyResults, arm: str, metric: str) -> pd.Series:
    """Mean of a logged metric over the last half of the steps, by seed. `clip_fraction`: low and high, in percent."""
    rows = runs_of(results, arm)
    logged = "clip_fraction_low" if metric == "clip_fraction" else metric
    if logged not in rows or rows[logged].isna().all():
        raise UserError(
            f"no run of {arm!r} logged {metric}: no batch had responses to one prompt with unequal rewards."
        )
    values = (
        100 * (rows["clip_fraction_low"] + rows["clip_fraction_high"]) if metric == "clip_fraction" else rows[metric]
    )
    rows = rows.assign(value=values).dropna(subset="value")
    return rows[rows["step"] >= rows["step"].max() / 2].groupby("seed")["value"].mean()


def runs_of(results: StudyResults, arm: str) -> pd.DataFrame:
    """The steps of an arm. UserError if it was not trained."""
    rows = results.steps[results.steps["arm"] == arm]
    if rows.empty:
        raise UserError(f"no run of {arm!r}: name it in an experiment, then `snakemake all`.")
    return rows.sort_values("step")


def reached(results: StudyResults, arm: str, than: str, by: str) -> pd.Series:
    """The cost of ``arm`` to reach the final accuracy of ``than``, relative to the cost of ``than``: log2, by seed.

    ``by`` is `steps` (optimizer steps), `tokens` (generated) or `seconds`. Accuracy is that of training samples,
    smoothed over five steps; the final accuracy is the mean over the last five. If ``arm`` does not reach it, the cost
    is that of one more step, which is a lower bound.
    """
    column = {"steps": "total_updates", "tokens": "total_tokens", "seconds": "total_seconds"}[by]
    own, other = (_smooth(results, name) for name in (arm, than))
    ratios = {}
    for seed in sorted(set(own) & set(other)):
        level = other[seed]["smooth"].iloc[-1]
        costs = [_cost(frame[seed], level, column) for frame in (own, other)]
        ratios[seed] = math.log2(costs[0] / costs[1])
    return pd.Series(ratios, dtype=float)


def _smooth(results: StudyResults, arm: str) -> dict[int, pd.DataFrame]:
    rows = runs_of(results, arm).dropna(subset="sampled_accuracy")
    return {
        int(str(seed)): frame.assign(smooth=frame["sampled_accuracy"].rolling(WINDOW, min_periods=1).mean())
        for seed, frame in rows.groupby("seed")
    }


def _cost(frame: pd.DataFrame, level: float, column: str) -> float:
    there = frame[frame["smooth"] >= level - 1e-12]
    if there.empty:
        return float(frame[column].iloc[-1]) * (len(frame) + 1) / len(frame)
    return float(there[column].iloc[0])


def learning_curve(results: StudyResults, arm: str, by: str = "steps") -> dict[int, pd.DataFrame]:
    """Validation accuracy of an arm by seed: columns `at` and `accuracy` (0 to 1), from the start model to the end.

    ``by``: `at` is the number of training steps made before a validation, or of `samples`, responses sampled before it.
    Seeds with fewer than two validations are left out.
    """
    curves = {}
    for seed, frame in runs_of(results, arm).groupby("seed"):
        at = frame["step"]
        if by == "samples":
            if "total_samples" not in frame:
                raise UserError(f"runs of {arm!r} have no total_samples: they were trained by an older version.")
            # A step validates before it samples, so its validation has seen the samples of the steps before it.
            at = frame["total_samples"].shift(1, fill_value=0)
        kept = pd.DataFrame({"at": at, "accuracy": frame["validation_accuracy"]}).dropna()
        if len(kept) > 1:
            curves[int(str(seed))] = kept.astype(float)
    if not curves:
        raise UserError(f"no run of {arm!r} was validated twice: lower `training.validate_every`.")
    return curves


def area(results: StudyResults, arm: str) -> pd.Series:
    """Area under the learning curve: validation accuracy in percent, mean over all training steps, by seed."""
    curves = learning_curve(results, arm)
    return pd.Series({seed: 100 * _mean_height(c, c["at"].iloc[-1]) for seed, c in curves.items()}, dtype=float)


def areas_by_samples(results: StudyResults, arm: str, than: str) -> tuple[pd.Series, pd.Series]:
    """`area` of two arms over samples instead of steps, up to the smaller total of the two, on their common seeds."""
    one, two = (learning_curve(results, name, "samples") for name in (arm, than))
    areas: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for seed in sorted(set(one) & set(two)):
        end = min(curves[seed]["at"].iloc[-1] for curves in (one, two))
        for found, curves in zip(areas, (one, two), strict=True):
            found[seed] = 100 * _mean_height(curves[seed], end)
    return pd.Series(areas[0], dtype=float), pd.Series(areas[1], dtype=float)


def _mean_height(curve: pd.DataFrame, end: float) -> float:
    """The mean height of a piecewise linear curve from its first point to ``end``, by the trapezoid rule."""
    x, y = curve["at"].to_numpy(dtype=float), curve["accuracy"].to_numpy(dtype=float)
    if end <= x[0]:
        return float(y[0])
    inside = x < end
    x, y = np.append(x[inside], end), np.append(y[inside], np.interp(end, x, y))
    return float(np.trapezoid(y, x) / (end - x[0]))


def estimated(results: StudyResults, method: str, column: str, updates: int | None = None) -> pd.Series:
    """A column of the estimators' records of one method, by start model, stage (`steps`) and distance (`updates`).

    ``updates``: one distance; None: all. `clip_fraction` is in percent.
    """
    table = results.estimators
    rows = _measured(table, table["estimator"] == method, f"estimator {method!r}", updates)
    values = rows.set_index(["seed", "steps", "updates"])[column].astype(float)
    return 100 * values if column == "clip_fraction" else values


def after_round(results: StudyResults, method: str, updates: int | None = None) -> pd.Series:
    """Reward after one round by a method in percent, mean over stages and pools, by start model.

    ``updates``: after this many; None: at the end of the round.
    """
    table = results.rounds
    at = int(table["updates"].max()) if updates is None else updates
    rows = _measured(table, table["method"] == method, f"round by {method!r}", at)
    return 100 * rows.groupby("seed")["reward"].mean()


def _measured(table: pd.DataFrame, chosen: pd.Series, what: str, updates: int | None) -> pd.DataFrame:
    """The chosen rows at a number of updates. UserError if there are none."""
    rows = table[chosen if updates is None else chosen & (table["updates"] == updates)]
    if rows.empty:
        at = "" if updates is None else f" after {updates} updates"
        raise UserError(f"no {what}{at} was measured: name it in the study file, then `snakemake all`.")
    return rows
