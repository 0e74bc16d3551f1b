"""The papers' recipes, of studies/recipes.yaml: each minus the one it is compared with, on all endpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pandas as pd

from policygrain.figures.labels import labels
from policygrain.study import load_study

from .common import ROOT, accuracies, areas, block, difference, endpoint_rows, shown, table

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
# The published ranges of all, 0.2 / 0.28, and GRPO's 0.2; MPO has that range in all tables.
EQUAL_RANGES = (
    ("tepo_published", "grpo"),
    ("tepo_published", "dapo_loss_published"),
    ("mpo", "dapo_loss_published"),
    ("mpo_dynamic", "dapo_published"),
)
SAMPLERS = (
    ("dapo", "token_clip"),
    ("mpo_dynamic", "mpo"),
    ("tepo_dynamic", "tepo"),
    ("mpo_dynamic", "dapo"),
    ("tepo_dynamic", "dapo"),
)


ENDS: dict[str, Callable[[str], pd.Series]] = {
    "area": functools.partial(areas, RECORD),
    "final, sampled": functools.partial(accuracies, RECORD, column="per_problem"),
    "final, greedy": functools.partial(accuracies, RECORD, column="greedy"),
}


@functools.cache
def planned() -> dict[tuple[str, str], list[str]]:
    """The planned pairs of recipes on all endpoints; bold by Holm's method over all of them, for each endpoint."""
    pairs = (*ONE_SAMPLER, *PUBLISHED, *SAMPLERS)
    rows = endpoint_rows([("", [difference(end(a), end(b)) for end in ENDS.values()]) for a, b in pairs])
    return {pair: cells for pair, (_, *cells) in zip(pairs, rows, strict=True)}


def titled(pair: tuple[str, str]) -> str:
    """The title of a row."""
    name = labels(STUDY)
    return f"{name(pair[0])} − {name(pair[1])}"


@block("recipes-one-sampler", ONE_SAMPLER)
@block("recipes-published", PUBLISHED)
@block("recipes-samplers", SAMPLERS)
def recipes(pairs: Sequence[tuple[str, str]]) -> str:
    """Some of the planned pairs."""
    return table(["points", *ENDS], [[titled(pair), *planned()[pair]] for pair in pairs])


@block("recipes-equal-ranges")
def equal_ranges() -> str:
    """Pairs with equal published ranges, which were not planned and are not corrected."""
    rows = [[titled((a, b)), *(shown(difference(end(a), end(b))) for end in ENDS.values())] for a, b in EQUAL_RANGES]
    return table(["points", *ENDS], rows)
