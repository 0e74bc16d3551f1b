"""What a finished run's records come to as points of curves: (metric, step, value)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from ..files import read_json, read_json_lines
from ..study.runs import Run

Point = tuple[str, int, float]

# What methods are compared by: their means over seeds stand with the method, and a first look has few charts.
HEADLINE = (
    "sampled_accuracy",
    "validation_accuracy",
    "entropy_old",
    "gradient_norm",
    "response_length_mean",
    "clip_fraction_low",
    "clip_fraction_high",
)
# Once more with generated tokens in the place of steps: a method that samples more per step is not ahead by that.
BY_TOKENS = ("sampled_accuracy", "validation_accuracy", "entropy_old")

SAMPLES = 5  # of each benchmark in the table of samples; all of them are among the artefacts
SHOWN = ("id", "problem", "response", "gold", "outcome")


@dataclass(frozen=True)
class Finished:
    """A finished run's records."""

    run: Run
    folder: Path
    summary: dict[str, Any]
    evaluation: dict[str, Any]  # empty where the final model was not judged

    @property
    def content(self) -> str:
        """What its numbers hang on."""
        return f"{self.summary['key']}/{self.evaluation.get('key', '')}"


def finished(run: Run, folder: Path) -> Finished | None:
    """The records of a run; None while it is not finished."""
    summary, evaluation = folder / "summary.json", folder / "evaluation" / "records.json"
    if not summary.exists():
        return None
    return Finished(run, folder, read_json(summary), read_json(evaluation) if evaluation.exists() else {})


def curves(record: Finished) -> Iterator[Point]:
    """Every logged number by step, some also by generated tokens, and the benchmarks' scores at the last step."""
    rows = read_json_lines(record.folder / "metrics.jsonl")
    for row in [*rows, *read_json_lines(record.folder / "timings.jsonl")]:
        yield from ((name, row["step"], float(value)) for name, value in row.items() if _is_metric(name, value))
    for row in rows:
        tokens = int(row["total_tokens"])
        yield from ((f"by_tokens/{name}", tokens, float(row[name])) for name in BY_TOKENS if name in row)
    yield from _scores(record, rows[-1]["step"])


def mean_curves(records: Sequence[Finished]) -> Iterator[Point]:
    """Means over seeds of the headline curves, where all seeds have a point, and of the benchmarks' scores."""
    values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for record in records:
        rows = read_json_lines(record.folder / "metrics.jsonl")
        for row in rows:
            for name in HEADLINE:
                if name in row:
                    values[name, row["step"]].append(row[name])
        for name, step, value in _scores(record, rows[-1]["step"]):
            values[name, step].append(value)
    yield from ((name, step, fmean(v)) for (name, step), v in values.items() if len(v) == len(records))


def some_samples(record: Finished) -> dict[str, list[str]]:
    """The first responses to each benchmark, as columns: the same problems for every run."""
    columns: dict[str, list[str]] = {name: [] for name in ("benchmark", *SHOWN)}
    for scores in record.evaluation["records"]:
        path = record.folder / "evaluation" / f"{scores['benchmark']}.jsonl"
        for row in islice(read_json_lines(path), SAMPLES):
            columns["benchmark"].append(scores["benchmark"])
            for name in SHOWN:
                columns[name].append(str(row[name]))
    return columns


def _scores(record: Finished, step: int) -> Iterator[Point]:
    scores = {r["benchmark"]: r["accuracy"] for r in record.evaluation.get("records", [])}
    if scores:
        scores["average"] = fmean(scores.values())
    yield from ((f"test/{benchmark}", step, float(score)) for benchmark, score in scores.items())


def _is_metric(name: str, value: object) -> bool:
    return name != "step" and isinstance(value, int | float)
