"""Tables of docs/length.md, from records: instruments on responses of four lengths and models of several sizes."""

from __future__ import annotations

import functools

import pandas as pd

from .common import block, compared, difference, files, shown, steps, table

# Record → its row of the tables, under the header of the column.
LENGTHS = {
    "demonstrations": "",
    "scale-direct": "answers alone",
    "scale": "mixed",
    "scale-scratchpad": "scratchpads alone",
    "scale-long": "long scratchpads",
}
SIZES = {
    "parameters": "",
    "scale": "0.09 million",
    "scale-0.3m": "0.3 million",
    "scale-1m": "1 million",
    "scale-5m": "5 million",
}
# Other initial models, for what the last two lengths suggested.
FRESH, FRESH_LONG = "scale-fresh", "scale-long-fresh"
PLANNED = ("none", "block", "sequence")
RATIOS = ("none", "block", "sequence", "product")
BASE = "token"
HEADER = ["initial models", "tokens"]


@functools.cache
def measured(record: str, folder: str, name: str) -> pd.DataFrame:
    """The rows of the records in a folder by initial model and ``name``; of a column with an interval its value."""
    rows = [
        row | {"seed": one["seed"]} for one in files(record, f"{folder}/seed*.json").values() for row in one["rows"]
    ]
    return (
        pd.DataFrame(rows).set_index([name, "seed"]).map(lambda value: value[0] if isinstance(value, list) else value)
    )


def estimated(record: str, method: str, column: str) -> pd.Series:
    """A column of the estimators' records by initial model."""
    return measured(record, "estimators", "estimator").loc[method, column]


def rewards(record: str, method: str) -> pd.Series:
    """Reward after the round by a method, in percent, by initial model; ``before``: before it."""
    table = measured(record, "rounds", "method")
    return 100 * (table.loc[BASE, "before"] if method == "before" else table.loc[method, "reward"])


def row(record: str, values: pd.Series) -> list[str]:
    """Number of initial models in ``values``, and mean length of responses over the training runs, in tokens."""
    return [str(len(values)), f"{steps(record)['response_length_mean'].mean():.0f}"]


def uncertain(record: str) -> str:
    """Number of measured initial models for which the interval of the true gradient's squared norm contains 0."""
    found = files(record, "estimators/seed*.json").values()
    return str(sum(bool(one["rows"]) and any("squared norm" in note for note in one["notes"]) for one in found))


@block("length-cosines", LENGTHS)
@block("size-cosines", SIZES)
def cosines(records: dict[str, str]) -> str:
    """Cosine of one batch's update with the true gradient, in hundredths: of the token ratio, and differences to it."""
    (header, _), *titles = records.items()
    rows = []
    for record, title in titles:
        token = 100 * estimated(record, BASE, "cosine")
        cells = [uncertain(record), f"{estimated(record, BASE, 'ratio_variance').mean():.2g}", f"{token.mean():.1f}"]
        differences = [difference(100 * estimated(record, m, "cosine"), token) for m in RATIOS]
        rows.append(([title, *row(record, token), *cells], differences))
    columns = ["uncertain", "variance of ratios", "cosine, token", *(f"{ratio} − token" for ratio in RATIOS)]
    return compared([header, *HEADER, *columns], rows)


@block("length-rounds", LENGTHS)
@block("size-rounds", SIZES)
def rounds(records: dict[str, str]) -> str:
    """Reward after 48 updates on the same rollouts, in points, relative to the token ratio."""
    (header, _), *titles = records.items()
    rows = []
    for record, title in titles:
        before, token = rewards(record, "before"), rewards(record, BASE)
        differences = [difference(token, before), *(difference(rewards(record, m), token) for m in RATIOS)]
        rows.append(([title, *row(record, token), f"{before.mean():.1f}"], differences))
    columns = ["reward before", "token − before", *(f"{ratio} − token" for ratio in RATIOS)]
    return compared([header, *HEADER, *columns], rows)


@block("length-fresh")
def fresh() -> str:
    """The three comparisons that were planned for fresh initial models, in points of reward after the round."""
    token, before = rewards(FRESH, BASE), rewards(FRESH, "before")
    columns = [*HEADER, "reward before", "token − before", *(f"{m} − token" for m in PLANNED)]
    cells = [*row(FRESH, token), f"{before.mean():.1f}", shown(difference(token, before))]
    return compared(columns, [(cells, [difference(rewards(FRESH, method), token) for method in PLANNED])])


@block("length-long-fresh")
def fresh_long() -> str:
    """The three comparisons that were planned for fresh initial models, in hundredths of the cosine."""
    token = 100 * estimated(FRESH_LONG, BASE, "cosine")
    columns = [*HEADER, "uncertain", "cosine, token", *(f"{m} − token" for m in PLANNED)]
    cells = [*row(FRESH_LONG, token), uncertain(FRESH_LONG), f"{token.mean():.1f}"]
    return compared(columns, [(cells, [difference(100 * estimated(FRESH_LONG, m, "cosine"), token) for m in PLANNED])])


@block("size-smollm2")
def smollm2() -> str:
    """SmolLM2: cosine of one batch's update with the true gradient, in hundredths; intervals are over batches."""
    (record,) = files("smollm2-sums", "estimators/seed*.json").values()

    def interval(low: float, high: float) -> str:
        return f"[{100 * low:+.1f}, {100 * high:+.1f}]"

    rows = []
    for estimate in record["rows"]:
        (cosine, *_), (mean, low, high) = estimate["cosine"], estimate["cosine_difference"]
        minus = "" if estimate["estimator"] == BASE else f"{100 * mean:+.1f} {interval(low, high)}"
        rows.append([estimate["estimator"], f"{estimate['ratio_variance']:.2g}", f"{100 * cosine:.1f}", minus])
    return table(["ratio", "variance of ratios", "cosine", "minus token [95% interval]"], rows)
