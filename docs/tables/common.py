"""What the tables of the documentation share: published records, paired differences, Markdown tables."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, TypeVar
from zipfile import ZipFile

import numpy as np
import pandas as pd
import yaml

from policygrain.analysis.statistics import LEVEL, Difference, student
from policygrain.analysis.verdicts import holm

ROOT = Path(__file__).resolve().parents[2]
F = TypeVar("F", bound=Callable[..., str])
BLOCKS: dict[str, Callable[[], str]] = {}  # name of a block → the function that writes it


def block(name: str, *arguments: Any) -> Callable[[F], F]:
    """Decorator of a function that writes the generated block ``name``, called with ``arguments``."""

    def register(function: F) -> F:
        BLOCKS[name] = functools.partial(function, *arguments)
        return function

    return register


def read(name: str, folder: str = "benchmarks") -> Any:
    """A committed JSON file."""
    return json.loads((ROOT / folder / f"{name}.json").read_text())


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table; ``align``: `r` for each column of numbers that is to be aligned right."""
    rule = ["---:" if place == "r" else "---" for place in align.ljust(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def spread(found: dict[str, float]) -> list[str]:
    """Median and range of a measurement, two digits after the point."""
    return [f"{found['median']:.2f}", f"{found['min']:.2f} to {found['max']:.2f}"]


# ---- published records ----------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    ".yaml": yaml.safe_load,
}


@functools.cache
def files(record: str, pattern: str) -> dict[str, Any]:
    """Name → content of the files of docs/records/RECORD.zip whose names match, in the order of their names.

    In these records the setting `off_policy_steps` has its earlier name, `ahead`.
    """
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        names = sorted(name for name in archive.namelist() if fnmatchcase(name, pattern))
        return {name: READERS.get(PurePath(name).suffix, str)(archive.read(name).decode()) for name in names}


@functools.cache
def steps(record: str) -> pd.DataFrame:
    """A row per run and step: `arm`, `seed`, and the metrics; the last of a run is its final validation."""
    frames = []
    for name, rows in files.__wrapped__(record, "runs/*/metrics.jsonl").items():  # as objects they are large
        _, arm, seed, _ = name.split("/")
        frames.append(pd.DataFrame(rows).assign(arm=arm, seed=int(seed.removeprefix("seed"))))
    return pd.concat(frames, ignore_index=True)


@functools.cache
def endpoints(record: str) -> pd.DataFrame:
    """By arm and seed, in percent: `area` under the curve of validation accuracy, its `first` and its `last` value."""
    found = {}
    for run, frame in steps(record).groupby(["arm", "seed"]):
        x, y = frame[["step", "validation_accuracy"]].dropna().to_numpy(dtype=float).T
        found[run] = {"area": np.trapezoid(y, x) / (x[-1] - x[0]), "first": y[0], "last": y[-1]}
    return 100 * pd.DataFrame.from_dict(found, orient="index").rename_axis(["arm", "seed"])


def arm_of(record: str, method: str, **settings: Any) -> str:
    """The name of an arm, which leaves out the settings that are the study's; empty if the record has none."""
    training = files(record, "study.yaml")["study.yaml"]["training"]
    parts = {method, *(f"{key}={value}" for key, value in settings.items() if value != training.get(key))}
    return next((arm for arm in _arms(record) if set(arm.split("+")) == parts), "")


@functools.cache
def _arms(record: str) -> list[str]:
    return list(steps(record)["arm"].unique())


def areas(record: str, method: str, *, endpoint: str = "area", **settings: Any) -> pd.Series:
    """An endpoint of an arm by seed, in percent; empty if the record does not have the arm."""
    arm = arm_of(record, method, **settings)
    return endpoints(record).loc[arm, endpoint] if arm else pd.Series(dtype=float)


def accuracies(record: str, arm: str, column: str) -> pd.Series:
    """Accuracy of the final models of an arm by seed, in percent, mean over benchmarks.

    ``column``: `per_problem` (of sampled responses) or `greedy`.
    """
    found = {}
    for name, evaluation in files(record, f"runs/{arm}/seed*/evaluation/records.json").items():
        seed = int(name.split("/seed")[1].partition("/")[0])
        found[seed] = 100 * float(np.mean([np.mean(benchmark[column]) for benchmark in evaluation["records"]]))
    return pd.Series(found, dtype=float)


# ---- differences ----------------------------------------------------------------------------------------------------


def difference(one: pd.Series, other: pd.Series) -> Difference:
    """``one`` minus ``other``, paired by seed or initial model."""
    return student((one - other).dropna())


def compare(record: str, one: str, other: str, **settings: Any) -> Difference:
    """The difference of the areas of two methods with equal settings."""
    return difference(areas(record, one, **settings), areas(record, other, **settings))


def shown(d: Difference, digits: int = 1) -> str:
    """Mean ± half of the 95% interval."""
    return f"{d.mean:+.{digits}f} ± {(d.high - d.low) / 2:.{digits}f}"


def corrected(rows: Sequence[Sequence[Difference]]) -> list[list[str]]:
    """Differences as text, bold where they differ from 0 by Holm's method over all of ``rows``."""
    p = iter(holm([d.p for row in rows for d in row]))
    return [[f"**{shown(d)}**" if next(p) < LEVEL else shown(d) for d in row] for row in rows]


Contrast = tuple[str, str, Difference]  # an arm, the one that it is compared with, and their difference
Side = tuple[str, Mapping[str, Any]]  # a method and its training settings


def contrast(record: str, one: Side, other: Side, endpoint: str = "area") -> Contrast:
    """Two arms of a record with the difference of an endpoint."""
    a, b = (areas(record, method, endpoint=endpoint, **settings) for method, settings in (one, other))
    return arm_of(record, one[0], **one[1]), arm_of(record, other[0], **other[1]), difference(a, b)


def corrected_in_study(record: str, found: Sequence[Contrast]) -> list[str]:
    """Differences of arms as text, bold where they are decided among all comparisons of their study.

    By Holm's method over the comparisons that the study planned and those of ``found`` that it did not.
    """
    csv = files(record, "tables/findings.csv")["tables/findings.csv"]
    planned = pd.read_csv(io.StringIO(csv)).query("finding != 'identical'")
    p = dict(zip(zip(planned["of"], planned["than"], strict=True), planned["area_p"], strict=True))
    p |= {(of, than): d.p for of, than, d in found if (of, than) not in p}
    adjusted = dict(zip(p, holm(list(p.values())), strict=True))
    return [f"**{shown(d)}**" if adjusted[of, than] < LEVEL else shown(d) for of, than, d in found]


def endpoint_rows(rows: Iterable[tuple[str, Sequence[Difference]]]) -> list[list[str]]:
    """Rows of a title and differences, as text; each column is an endpoint of its own, corrected by itself."""
    titles, differences = zip(*rows, strict=True)
    texts = [[text for (text,) in corrected([[d] for d in column])] for column in zip(*differences, strict=True)]
    return [[title, *cells] for title, *cells in zip(titles, *texts, strict=True)]


def compared(header: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[Difference]]]) -> str:
    """A table whose rows have cells and then differences, corrected over the table."""
    names, differences = zip(*rows, strict=True)
    return table(header, [[*name, *texts] for name, texts in zip(names, corrected(differences), strict=True)])
