"""The borders of the phase map with fresh seeds: the planned comparisons of studies/night.yaml, beside the map."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from policygrain.study import load_study

from .common import ROOT, table
from .phase import Difference, areas, corrected, difference

STUDY = "studies/night.yaml"
RECORDS = {"phase": "map", "night": "fresh"}  # record → name of its column


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


def by_start(of_seeds: dict[int, float]) -> dict[int, float]:
    """Initial model → mean over the seeds that begin from it, which are not independent; as `study.start_seed`."""
    first, starts = min(of_seeds), load_study(ROOT / STUDY).model.starts
    assert starts is not None
    groups: dict[int, list[float]] = {}
    for seed, value in of_seeds.items():
        groups.setdefault((seed - first) % starts, []).append(value)
    return {start: fmean(values) for start, values in groups.items()}


def borders() -> str:
    """Each planned comparison on the map and with fresh seeds."""
    columns: list[list[str]] = []
    for record in RECORDS:
        found: list[list[Difference]] = [
            [difference(by_start(areas(one, age, rate, record)), by_start(areas(other, age, rate, record)))]
            for age, rate, one, other in planned()
        ]
        columns.append([text for (text,) in corrected(found)])
    names = [[f"{age}", f"{rate:g}", f"{_name(one)} − {_name(other)}"] for age, rate, one, other in planned()]
    rows = [[*name, *shown] for name, shown in zip(names, zip(*columns, strict=True), strict=True)]
    age, rate, one, _ = planned()[0]
    counts = [f"{name}, {len(areas(one, age, rate, record))} seeds" for record, name in RECORDS.items()]
    return table(["age", "learning rate", "comparison", *counts], rows)


def _name(method: str) -> str:
    return method.replace("_", " ")


BLOCKS: dict[str, Callable[[], str]] = {"night-borders": borders}
