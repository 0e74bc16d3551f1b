"""The curves of a finished run as points (metric, step, value)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..results.layout import RunFolder
from ..results.reader import StudyResults, evaluated_samples, run_metrics, run_timings
from ..results.schema import EvaluatedSample, ModelEvaluation, RunSummary
from ..study.runs import Run

Point = tuple[str, int, float]

# Metrics whose means over seeds are logged in the parent run of a method; few, so that its charts are readable.
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


def curves(record: Finished) -> Iterator[Point]:
    """All metrics and timings by step, some metrics also by generated tokens, and benchmark scores at the last step."""
    rows = run_metrics(record.folder)
    for row in [*rows, *run_timings(record.folder)]:
        yield from ((name, row["step"], float(value)) for name, value in row.items() if _is_metric(name, value))
    for row in rows:
        tokens = int(row["total_tokens"])
        yield from ((f"by_tokens/{name}", tokens, float(row[name])) for name in BY_TOKENS if name in row)
    yield from _scores(record, rows[-1]["step"])


def mean_curves(records: Sequence[Finished]) -> Iterator[Point]:
    """Means over seeds of the headline metrics, at steps where all seeds have a value, and of the benchmark scores."""
    values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for record in records:
        rows = run_metrics(record.folder)
        for row in rows:
            for name in HEADLINE:
                if name in row:
                    values[name, row["step"]].append(row[name])
        for name, step, value in _scores(record, rows[-1]["step"]):
            values[name, step].append(value)
    yield from ((name, step, fmean(v)) for (name, step), v in values.items() if len(v) == len(records))


def some_samples(record: Finished) -> dict[str, list[str]]:
    """The first responses of each benchmark, as columns; every run has the same problems."""
    columns: dict[str, list[str]] = {name: [] for name in ("benchmark", *SHOWN)}
    for scores in record.evaluation.records if record.evaluation else ():
        rows: list[EvaluatedSample] = evaluated_samples(record.folder.evaluation, scores)
        for row in rows[:SAMPLES]:
            columns["benchmark"].append(scores.benchmark)
            for name in SHOWN:
                columns[name].append(str(getattr(row, name)))
    return columns


def _scores(record: Finished, step: int) -> Iterator[Point]:
    scores = {r.benchmark: r.accuracy for r in record.evaluation.records} if record.evaluation else {}
    if scores:
        scores["average"] = fmean(scores.values())
    yield from ((f"test/{benchmark}", step, float(score)) for benchmark, score in scores.items())


def _is_metric(name: str, value: object) -> bool:
    return name != "step" and isinstance(value, int | float)
