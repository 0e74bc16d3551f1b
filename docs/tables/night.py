"""The borders of the phase map with fresh seeds: comparisons of studies/night.yaml and its replicate, and the map."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from policygrain.study import load_study

from .common import ROOT, table
from .phase import Difference, areas, corrected, difference

STUDY = "studies/night.yaml"
SETS = {"first set": ("night",), "second set": ("night-replicate",), "both": ("night", "night-replicate")}
COLUMNS = {"map": ("phase",), **SETS}  # name of a column → records whose initial models it is over


def planned() -> list[tuple[int, float, str, str]]:
    """Age, learning rate and the two methods of each planned comparison: each with the reference, then `compare`."""
    study = load_study(ROOT / STUDY)
    comparisons = []
    for experiment in study.experiments.values():
        (age,) = experiment.vary["ahead"]
        (rate,) = experiment.vary.get("learning_rate", [study.training.learning_rate])
        pairs = [(name, experiment.reference) for name in experiment.methods if name != experiment.reference]
        comparisons += [(age, rate, one, other) for one, other in [*pairs, *experiment.compare]]
    return comparisons


def by_start(one: str, other: str, age: int, rate: float, records: tuple[str, ...]) -> Difference:
    """A comparison over the initial models of ``records``: means of the seeds that begin from one, as `start_seed`."""
    starts = load_study(ROOT / STUDY).model.starts
    assert starts is not None
    sides: list[dict[int, list[float]]] = []
    for method in (one, other):
        groups: dict[int, list[float]] = {}
        for place, record in enumerate(records):
            of_seeds = areas(method, age, rate, record)
            for seed, area in of_seeds.items():
                groups.setdefault(place * starts + (seed - min(of_seeds)) % starts, []).append(area)
        sides.append(groups)
    means = [{start: fmean(values) for start, values in groups.items()} for groups in sides]
    return difference(*means)


def differences(column: str) -> list[Difference]:
    """All planned comparisons over the records of a column."""
    return [by_start(one, other, age, rate, COLUMNS[column]) for age, rate, one, other in planned()]


def borders() -> str:
    """Each planned comparison on the map, with each set of fresh seeds, and with both."""
    columns = [[text for (text,) in corrected([[d] for d in differences(column)])] for column in COLUMNS]
    names = [[f"{age}", f"{rate:g}", f"{_name(one)} − {_name(other)}"] for age, rate, one, other in planned()]
    rows = [[*name, *shown] for name, shown in zip(names, zip(*columns, strict=True), strict=True)]
    age, rate, one, _ = planned()[0]
    counts = [
        f"{name}, {sum(len(areas(one, age, rate, record)) for record in records)} seeds"
        for name, records in COLUMNS.items()
    ]
    return table(["age", "learning rate", "comparison", *counts], rows)


def agreement() -> str:
    """Whether the second set has the direction of the first, and whether the intervals overlap."""
    first, second = (differences(name) for name in list(SETS)[:2])
    decided = [["**" in text for (text,) in corrected([[d] for d in column])] for column in (first, second)]
    rows = []
    for name, chosen in (
        ("decided in the first set", [a for a, _ in zip(*decided, strict=True)]),
        ("not decided in the first set", [not a for a, _ in zip(*decided, strict=True)]),
    ):
        pairs = [(a, b, d) for a, b, c, d in zip(first, second, chosen, decided[1], strict=True) if c]
        same = sum(a.mean * b.mean > 0 for a, b, _ in pairs)
        overlap = sum(abs(a.mean - b.mean) <= a.half + b.half for a, b, _ in pairs)
        again = sum(d and a.mean * b.mean > 0 for a, b, d in pairs)
        rows.append([name, *map(str, (len(pairs), same, overlap, again, sum(d for *_, d in pairs) - again))])
    headers = ["", "comparisons", "same direction", "intervals overlap", "decided again", "decided opposite"]
    return table(headers, rows)


def _name(method: str) -> str:
    return method.replace("_", " ")


BLOCKS: dict[str, Callable[[], str]] = {"night-borders": borders, "night-agreement": agreement}
