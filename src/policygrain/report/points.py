"""The records of a run as points of metrics, a list per step, which is logged as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..paths import RunFolder
from ..records import ModelEvaluation
from ..results import run_metrics, run_timings

SINGLE = 0  # the step of a metric with one value: MLflow draws a bar for each run, and a curve for later steps


class Point(NamedTuple):
    """A value of a metric. ``time``: in milliseconds since 1970, as recorded; the step for records without times."""

    name: str
    step: int
    value: float
    time: int


def steps(folder: RunFolder, after: int) -> Iterator[list[Point]]:
    """The metrics and timings of each step after step ``after``, as far as the files of the run are complete.

    UserError if steps are missing in the files of a run that has ended.
    """
    if folder.summary.exists():
        metrics, timings = run_metrics(folder), run_timings(folder)
    else:
        timings = _whole_rows(folder.timings)
        metrics = _whole_rows(folder.metrics)[: len(timings)]
    time = 0
    for step, row in enumerate(metrics):
        machine = timings[step] if step < len(timings) else {}  # the final validation has no timings
        time = _time(machine) if machine else max(time, step)
        if step > after:
            values = {name: value for name, value in (row | machine).items() if name != "time"}
            yield [Point(n, step, float(v), time) for n, v in values.items() if isinstance(v, int | float)]


def scores(folder: RunFolder, evaluation: ModelEvaluation) -> list[Point]:
    """Benchmark scores, one point each."""
    time = max(map(_time, run_timings(folder)), default=SINGLE)
    accuracies = {record.benchmark: record.accuracy for record in evaluation.records}
    accuracies["average"] = fmean(accuracies.values())
    return [Point(f"test/{name}", SINGLE, value, time) for name, value in accuracies.items()]


def _whole_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of steps 0, 1, 2 …, up to the first that is missing or not completely written."""
    rows: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or row.get("step") != len(rows):
            break
        rows.append(row)
    return rows


def _time(row: Mapping[str, Any]) -> int:
    return int(1000 * row["time"]) if "time" in row else int(row["step"])
