"""Tables of docs/length.md: instruments on responses of three lengths, from their records."""

from __future__ import annotations

import functools
import json
from typing import Any
from zipfile import ZipFile

import numpy as np

from .common import ROOT, table
from .phase import Difference, corrected, difference

# Record → its row of the tables.
RECORDS = {
    "scale-direct": "answers alone",
    "scale": "mixed",
    "scale-scratchpad": "scratchpads alone",
}
FRESH = "scale-fresh"  # other initial models, for what the last of these suggested
RATIOS = ("none", "block", "sequence", "product")
BASE = "token"


@functools.cache
def files(record: str, folder: str) -> dict[int, Any]:
    """The contents of `folder`/seedS.json by seed."""
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{folder}/seed") and name.endswith(".json")]
        records = [json.loads(archive.read(name)) for name in names]
    return {one["seed"]: one for one in records}


def estimated(record: str, method: str, column: str) -> dict[int, float]:
    """A column of the estimators' records by initial model; of a measured column its value without the interval."""
    values = {}
    for seed, one in files(record, "estimators").items():
        for row in one["rows"]:
            if row["estimator"] == method:
                values[seed] = row[column][0] if isinstance(row[column], list) else row[column]
    return values


def rewards(record: str, method: str) -> dict[int, float]:
    """Reward after the round by a method, in percent, by initial model; ``before``: before it."""
    key = "before" if method == "before" else "reward"
    return {
        seed: 100 * row[key]
        for seed, one in files(record, "rounds").items()
        for row in one["rows"]
        if row["method"] == (BASE if method == "before" else method)
    }


def length(record: str) -> float:
    """Mean length of responses over the training runs, in tokens."""
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("runs/") and name.endswith("/metrics.jsonl")]
        rows = [json.loads(line) for name in names for line in archive.read(name).splitlines()]
    return float(np.mean([row["response_length_mean"] for row in rows if "response_length_mean" in row]))


def _table(columns: list[str], differences: list[list[Difference]], middle: list[list[str]]) -> str:
    rows = [
        [title, str(len(files(record, "rounds"))), f"{length(record):.0f}", *cells, *texts]
        for (record, title), cells, texts in zip(RECORDS.items(), middle, corrected(differences), strict=True)
    ]
    return table(["demonstrations", "initial models", "tokens", *columns], rows)


def cosines() -> str:
    """Cosine of one batch's update with the true gradient, in hundredths: of the token ratio, and differences to it."""
    differences, middle = [], []
    for record in RECORDS:
        token = estimated(record, BASE, "cosine")
        variance = np.mean([*estimated(record, BASE, "ratio_variance").values()])
        middle.append([f"{variance:.2g}", f"{100 * np.mean([*token.values()]):.1f}"])
        hundredths = [{s: 100 * v for s, v in estimated(record, m, "cosine").items()} for m in (BASE, *RATIOS)]
        differences.append([difference(of, hundredths[0]) for of in hundredths[1:]])
    columns = ["variance of ratios", "cosine, token", *(f"{ratio} − token" for ratio in RATIOS)]
    return _table(columns, differences, middle)


def rounds() -> str:
    """Reward after 48 updates on the same rollouts, in points, relative to the token ratio."""
    differences, middle = [], []
    for record in RECORDS:
        before, token = rewards(record, "before"), rewards(record, BASE)
        middle.append([f"{np.mean([*before.values()]):.1f}"])
        differences.append([difference(token, before), *(difference(rewards(record, m), token) for m in RATIOS)])
    columns = ["reward before", "token − before", *(f"{ratio} − token" for ratio in RATIOS)]
    return _table(columns, differences, middle)


def fresh() -> str:
    """The three comparisons that were planned for fresh initial models, in points of reward after the round."""
    token, before = rewards(FRESH, BASE), rewards(FRESH, "before")
    planned = ("none", "block", "sequence")
    texts = corrected([[difference(rewards(FRESH, method), token) for method in planned]])
    gain = difference(token, before)
    columns = ["initial models", "tokens", "reward before", "token − before", *(f"{m} − token" for m in planned)]
    cells = [f"{np.mean([*before.values()]):.1f}", f"{gain.mean:+.1f} ± {gain.half:.1f}"]
    return table(columns, [[str(len(token)), f"{length(FRESH):.0f}", *cells, *texts[0]]])


BLOCKS = {"length-cosines": cosines, "length-rounds": rounds, "length-fresh": fresh}
