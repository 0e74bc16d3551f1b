"""The papers' recipes, of studies/recipes.yaml: each minus the one it is compared with, on all endpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from policygrain.figures.labels import labels
from policygrain.study import load_study

from .common import ROOT, areas, block, difference, endpoint_rows, files, table

RECORD = "recipes"
STUDY = load_study(ROOT / "studies/recipes.yaml")
# With one sampler, GRPO's; then what a published clip range and dynamic sampling change. `token_clip` is DAPO's loss.
ONE_SAMPLER = (
    ("token_clip", "grpo"),
    ("mpo", "grpo"),
    ("tepo", "grpo"),
    ("gspo_chosen", "grpo"),
    ("mpo", "token_clip"),
    ("tepo", "token_clip"),
)
PUBLISHED = (
    ("dapo_loss_published", "token_clip"),
    ("dapo_published", "dapo"),
    ("tepo_published", "tepo"),
    ("gspo", "gspo_chosen"),
)
SAMPLERS = (
    ("dapo", "token_clip"),
    ("mpo_dynamic", "mpo"),
    ("tepo_dynamic", "tepo"),
    ("mpo_dynamic", "dapo"),
    ("tepo_dynamic", "dapo"),
)


def accuracy(method: str, column: str) -> pd.Series:
    """Accuracy of the final models by seed, in percent, mean over benchmarks; ``column``: `per_problem` or `greedy`."""
    found = {}
    for name, evaluation in files(RECORD, f"runs/{method}/seed*/evaluation/records.json").items():
        seed = int(name.split("/seed")[1].partition("/")[0])
        found[seed] = 100 * float(np.mean([np.mean(record[column]) for record in evaluation["records"]]))
    return pd.Series(found, dtype=float)


ENDS: dict[str, Callable[[str], pd.Series]] = {
    "area": functools.partial(areas, RECORD),
    "final, sampled": functools.partial(accuracy, column="per_problem"),
    "final, greedy": functools.partial(accuracy, column="greedy"),
}


@block("recipes-one-sampler", ONE_SAMPLER)
@block("recipes-published", PUBLISHED)
@block("recipes-samplers", SAMPLERS)
def recipes(pairs: Sequence[tuple[str, str]]) -> str:
    """All endpoints of pairs of recipes; bold by Holm's method over each column."""
    name = labels(STUDY)
    rows = [(f"{name(a)} − {name(b)}", [difference(end(a), end(b)) for end in ENDS.values()]) for a, b in pairs]
    return table(["points", *ENDS], endpoint_rows(rows))
