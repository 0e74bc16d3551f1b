"""The borders of the phase map with fresh seeds: comparisons of studies/night.yaml and its replicate, and the map."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from policygrain.analysis import Difference
from policygrain.study import load_study

from .common import ROOT, areas, block, corrected, difference, shown, table

STUDY = load_study(ROOT / "studies/night.yaml")
SETS = {"first set": ("night",), "second set": ("night-replicate",), "both": ("night", "night-replicate")}
COLUMNS = {"map": ("phase",), **SETS}  # name of a column → records whose initial models it is over


class Planned(NamedTuple):
    """A planned comparison: two methods in a regime."""

    one: str
    other: str
    regime: dict[str, Any]


def planned() -> list[Planned]:
    """Each method of an experiment with its reference, then those under `compare`."""
    comparisons = []
    for experiment in STUDY.experiments.values():
        (age,) = experiment.vary["off_policy_steps"]
        (rate,) = experiment.vary.get("learning_rate", [STUDY.training.learning_rate])
        pairs = [(name, experiment.reference) for name in experiment.methods if name != experiment.reference]
        regime = {"ahead": age, "learning_rate": rate}
        comparisons += [Planned(one, other, regime) for one, other in [*pairs, *experiment.compare]]
    return comparisons


def by_start(method: str, regime: dict[str, Any], records: tuple[str, ...]) -> pd.Series:
    """Areas by initial model of ``records``: means of the seeds that begin from one, as `start_seed`."""
    starts = STUDY.model.starts
    assert starts is not None
    found = []
    for place, record in enumerate(records):
        of_seeds = areas(record, method, **regime)
        found.append(of_seeds.groupby(place * starts + (of_seeds.index - of_seeds.index.min()) % starts).mean())
    return pd.concat(found)


def differences(column: str) -> list[Difference]:
    """All planned comparisons over the records of a column."""
    records = COLUMNS[column]
    return [difference(by_start(p.one, p.regime, records), by_start(p.other, p.regime, records)) for p in planned()]


def texts(column: str) -> list[str]:
    """The differences of a column, bold where they are decided. The map's own tables have its verdicts."""
    if column == "map":
        return [shown(d) for d in differences(column)]
    return [text for (text,) in corrected([[d] for d in differences(column)])]


@block("night-borders")
def borders() -> str:
    """Each planned comparison on the map, with each set of fresh seeds, and with both."""
    names = [
        [f"{p.regime['ahead']}", f"{p.regime['learning_rate']:g}", f"{p.one} − {p.other}".replace("_", " ")]
        for p in planned()
    ]
    rows = [[*name, *row] for name, row in zip(names, zip(*map(texts, COLUMNS), strict=True), strict=True)]
    first = planned()[0]
    counts = [
        f"{name}, {sum(len(areas(record, first.one, **first.regime)) for record in records)} seeds"
        for name, records in COLUMNS.items()
    ]
    return table(["age", "learning rate", "comparison", *counts], rows)


@block("night-agreement")
def agreement() -> str:
    """Whether the second set has the direction of the first, and whether the intervals overlap."""
    one, two = list(SETS)[:2]
    first, second = (["**" in text for text in texts(name)] for name in (one, two))
    every = list(zip(differences(one), differences(two), first, second, strict=True))
    rows = []
    for name, wanted in (("decided in the first set", True), ("not decided in the first set", False)):
        pairs = [(a, b, again) for a, b, decided, again in every if decided == wanted]
        same = sum(a.mean * b.mean > 0 for a, b, _ in pairs)
        overlap = sum(a.low <= b.high and b.low <= a.high for a, b, _ in pairs)
        again = sum(decided and a.mean * b.mean > 0 for a, b, decided in pairs)
        opposite = sum(decided for *_, decided in pairs) - again
        rows.append([name, *map(str, (len(pairs), same, overlap, again, opposite))])
    headers = ["", "comparisons", "same direction", "intervals overlap", "decided again", "decided opposite"]
    return table(headers, rows)
