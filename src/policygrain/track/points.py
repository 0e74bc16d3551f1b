"""The records of a run as points of metrics, a list per step, which is logged as a whole."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..results.layout import RunFolder
from ..results.reader import StudyResults, evaluated_samples, run_metrics, run_timings
from ..results.schema import EvaluatedSample, ModelEvaluation, RunSummary
from ..study.runs import Run


class Point(NamedTuple):
    """A value of a metric. ``time``: in milliseconds since 1970, as recorded; the step for records without times."""

    name: str
    step: int
    value: float
    time: int


# Metrics whose means over seeds are logged in the run of a method; few, so that its charts are readable.
HEADLINE = (
    "sampled_accuracy",
    "validation_accuracy",
    "entropy_old",
    "gradient_norm",
    "response_length_mean",
    "clip_fraction_low",
    "clip_fraction_high",
)
# Metrics that are also logged by generated tokens: dynamic sampling generates more tokens per step.
BY_TOKENS = ("sampled_accuracy", "validation_accuracy", "entropy_old")
# A metric of every step: its last point in MLflow is the last step that was logged.
CURSOR = "total_tokens"
SINGLE = 0  # the step of a metric with one value: MLflow draws a bar for each run, and a curve for later steps

SAMPLES = 5  # per benchmark in the table of samples; all samples are artefacts of the run
SHOWN = ("id", "problem", "response", "gold", "outcome")


@dataclass(frozen=True)
class Finished:
    """The records of a run that has ended; ``evaluation`` is None if its model was not evaluated."""

    run: Run
    folder: RunFolder
    summary: RunSummary
    evaluation: ModelEvaluation | None

    @property
    def content(self) -> str:
        """The key of everything that is logged: the keys of the run and its evaluation."""
        return f"{self.summary.key}/{self.evaluation.key if self.evaluation else ''}"


def finished(results: StudyResults, run: Run) -> Finished | None:
    """The records of a run; None if it has not ended."""
    if run not in results.summaries:
        return None
    evaluation = results.model_evaluations.get(run.name)
    return Finished(run, results.run_folder(run), results.summaries[run], evaluation)


def steps_so_far(folder: RunFolder, after: int) -> Iterator[list[Point]]:
    """The points of each step after step ``after`` of a run that is being trained, as far as its files are complete."""
    metrics, timings = _whole_rows(folder.metrics), _whole_rows(folder.timings)
    # The last line of the metrics, the final validation, has no timings.
    complete = len(metrics) if folder.summary.exists() else min(len(metrics), len(timings))
    yield from _steps(metrics[:complete], timings, after)


def steps(record: Finished, after: int) -> Iterator[list[Point]]:
    """The points of each step after step ``after`` of a run that has ended."""
    yield from _steps(run_metrics(record.folder), run_timings(record.folder), after)


def scores(record: Finished) -> list[Point]:
    """Benchmark scores, one point each."""
    at = {row["step"]: _time(row) for row in run_timings(record.folder)}
    time = max(at.values(), default=record.summary.final.steps)
    return [Point(f"test/{name}", SINGLE, value, time) for name, value in _scores(record).items()]


def means(records: Sequence[Finished]) -> Iterator[list[Point]]:
    """Means over seeds of the headline metrics, at steps where all seeds have a value, and of the benchmark scores.

    They have the times of the first seed.
    """
    values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for record in records:
        rows = run_metrics(record.folder)
        for row in rows:
            for name in HEADLINE:
                if name in row:
                    values[name, row["step"]].append(row[name])
        for name, value in _scores(record).items():
            values[f"test/{name}", SINGLE].append(value)
    at = {row["step"]: _time(row) for row in run_timings(records[0].folder)}
    last = max(at.values(), default=0)
    by_step: defaultdict[int, list[Point]] = defaultdict(list)
    for (name, step), v in values.items():
        if len(v) == len(records):
            by_step[step].append(Point(name, step, fmean(v), at.get(step, max(last, step))))
    yield from (by_step[step] for step in sorted(by_step))


def some_samples(record: Finished) -> dict[str, list[str]]:
    """The first responses of each benchmark, as columns; every run has the same problems."""
    columns: dict[str, list[str]] = {name: [] for name in ("benchmark", *SHOWN)}
    for scored in record.evaluation.records if record.evaluation else ():
        rows: list[EvaluatedSample] = evaluated_samples(record.folder.evaluation, scored)
        for row in rows[:SAMPLES]:
            columns["benchmark"].append(scored.benchmark)
            for name in SHOWN:
                columns[name].append(str(getattr(row, name)))
    return columns


def _steps(
    metrics: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]], after: int
) -> Iterator[list[Point]]:
    """All metrics and timings of each step, some metrics also by generated tokens."""
    measured = {row["step"]: row for row in timings}
    time = 0
    for row in metrics:
        step, machine = row["step"], measured.get(row["step"], {})
        time = _time(machine) if machine else max(time, step)
        if step <= after:
            continue
        named = [*row.items(), *machine.items()]
        points = [Point(name, step, float(value), time) for name, value in named if _is_metric(name, value)]
        tokens = int(row[CURSOR])
        points += [Point(f"by_tokens/{name}", tokens, float(row[name]), time) for name in BY_TOKENS if name in row]
        yield points


def _whole_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of steps 0, 1, 2 …, up to the first that is missing or incomplete: the file may be being written."""
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


def _scores(record: Finished) -> dict[str, float]:
    accuracies = {r.benchmark: r.accuracy for r in record.evaluation.records} if record.evaluation else {}
    return {**accuracies, "average": fmean(accuracies.values())} if accuracies else {}


def _is_metric(name: str, value: object) -> bool:
    return name not in ("step", "time") and isinstance(value, int | float)
