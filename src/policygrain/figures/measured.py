"""Numbers per seed or per start model, in points, that several figures show: learning curves, rounds, estimators."""

from __future__ import annotations

import pandas as pd

from ..errors import UserError
from ..results.reader import StudyResults

MARGIN_OF_ROUNDS = 1.0  # points


def headline(results: StudyResults) -> list[str]:
    """The arms of the headline with the study's own settings; all of them where each differs in some setting."""
    arms = results.arms("headline")
    return [arm for arm in arms if "+" not in arm] or arms


def paired(one: pd.Series, other: pd.Series) -> pd.Series:
    """The differences of two numbers per unit, for units that have both."""
    difference: pd.Series = (one - other).dropna()
    if difference.empty:
        raise UserError("two arms of a figure have no seed in common: run `snakemake all`.")
    return difference


# ---- rounds ---------------------------------------------------------------------------------------------------------


def round_difference(results: StudyResults, name: str, than: str, updates: int) -> pd.Series:
    """Reward after some updates by one method minus that by another from the same pools, in points, by start model."""
    keys = ["seed", "steps", "pool"]
    one, other = (_round_rows(results, m, updates).set_index(keys)["reward"] for m in (name, than))
    difference = 100 * paired(one, other)
    return difference.groupby(level="seed").mean()


def _round_rows(results: StudyResults, name: str, updates: int) -> pd.DataFrame:
    rows = results.rounds
    found = rows[(rows["method"] == name) & (rows["updates"] == updates)]
    if found.empty:
        raise UserError(
            f"no round of {updates} updates by {name!r}: name it in `rounds.methods`, then `snakemake all`."
        )
    return found


def round_updates(results: StudyResults) -> list[int]:
    """The numbers of updates after which the policies of a round were validated."""
    return sorted(int(u) for u in results.rounds["updates"].unique())


def round_reference(results: StudyResults) -> str:
    """The method that differences between rounds are to."""
    return results.round_records[0].reference


# ---- estimators -----------------------------------------------------------------------------------------------------


def estimated(results: StudyResults, name: str, updates: int, metric: str) -> pd.Series:
    """A metric of an estimator at a distance, mean over stages of training, by start model."""
    rows = results.estimators
    rows = rows[(rows["estimator"] == name) & (rows["updates"] == updates)]
    if rows.empty:
        raise UserError(f"no estimator {name!r}: name it in `estimators.methods`, then `snakemake all`.")
    return rows.groupby("seed")[metric].mean()


def distances(results: StudyResults) -> list[int]:
    """The distances at which estimators were measured, in optimizer steps."""
    return sorted(int(u) for u in results.estimators["updates"].unique())
