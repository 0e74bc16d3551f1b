"""Numbers per seed that are used by several figures and claims."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..errors import UserError
from ..results.reader import StudyResults
from .statistics import Array

WINDOW = 5  # steps over which the accuracy of samples is smoothed


def accuracy(results: StudyResults, arm: str) -> pd.Series:
    """Accuracy of the final model in percent, mean over benchmarks, by seed."""
    rows = results.evaluations[results.evaluations["arm"] == arm]
    if rows.empty:
        raise UserError(f"no evaluation of {arm!r}: name it in an evaluated experiment, then `snakemake all`.")
    return 100 * rows.groupby("seed")["accuracy"].mean()


def paired_scores(results: StudyResults, arm: str, than: str) -> tuple[list[Array], list[Array]]:
    """Scores of two arms on the seeds that both have: lists over benchmarks of [seeds, problems], seeds in order."""
    table = results.evaluations
    rows = [table[table["arm"] == name] for name in (arm, than)]
    for name, found in zip((arm, than), rows, strict=True):
        if found.empty:
            raise UserError(
                f"no evaluation of {name!r}: name it in an experiment that is evaluated, then `snakemake all`."
            )
    names = [b for b in results.benchmarks if all((found["benchmark"] == b).any() for found in rows)]
    by_seed = [{b: found[found["benchmark"] == b].set_index("seed")["per_problem"] for b in names} for found in rows]
    seeds = sorted(set.intersection(*(set(s.index) for found in by_seed for s in found.values())))
    if not seeds:
        raise UserError(f"no seed on which both {arm!r} and {than!r} were evaluated: run `snakemake all`.")
    one, two = ([np.array(found[b].loc[seeds].tolist(), dtype=float) for b in names] for found in by_seed)
    return one, two


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


def probed(results: StudyResults, ratio: str, metric: str) -> pd.Series:
    """A metric of a ratio in the probe, geometric mean over the numbers of optimizer steps, by seed."""
    rows = results.probes[results.probes["ratio"] == ratio]
    if rows.empty:
        raise UserError(f"no probe of the ratio {ratio!r}: run `snakemake all`.")
    logs = rows.assign(value=np.log(rows[metric].clip(lower=1e-30)))
    return np.exp(logs.groupby("seed")["value"].mean())
