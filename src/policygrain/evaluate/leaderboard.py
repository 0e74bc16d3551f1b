"""The table of models that were evaluated without a study."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from ..analysis import Estimate, accuracy
from ..paths import StudyFolder
from ..records import BenchmarkRecord
from ..results import model_evaluation

FAILURES = ("timeout", "error")  # of the grader; counted as incorrect


def leaderboard(results: StudyFolder) -> tuple[list[str], list[list[str]]]:
    """The table of all models in ``results`` as (header, rows): a row per benchmark, the best model first.

    In %: accuracy with its 95% interval over problems, pass@k, maj@n, and the shares of responses without an answer
    (`unparsable`), that the grader failed on (`not graded`) or that ended at the length limit (`truncated`).
    """
    models = [(name.rpartition("/")[0], model_evaluation(folder).records) for name, folder in results.evaluations()]
    models.sort(key=lambda model: -fmean(record.accuracy for record in model[1]))
    ks = sorted({k for _, records in models for record in records for k in record.pass_at} - {1})
    header = ["model", "benchmark", "problems", "n", "accuracy", *(f"pass@{k}" for k in ks), "maj@n"]
    header += ["unparsable", "not graded", "truncated"]
    rows = []
    for name, records in models:
        if len(records) > 1:
            average = _interval(accuracy([np.array([record.per_problem]) for record in records]))
            rows.append([name, "average", "", "", average, *[""] * (len(header) - 5)])
        rows += [[name, *_scores(record, ks)] for record in records]
    return header, rows


def _scores(record: BenchmarkRecord, ks: list[int]) -> list[str]:
    responses = sum(record.outcomes.values())
    failed = [record.outcomes.get("unparsable", 0), sum(record.outcomes.get(kind, 0) for kind in FAILURES)]
    shares = [*(record.pass_at.get(k) for k in ks), record.majority, *(n / responses for n in failed), record.truncated]
    return [
        record.benchmark,
        str(record.problems),
        str(record.n),
        _interval(accuracy([np.array([record.per_problem])])),
        *("" if share is None else f"{100 * share:.1f}" for share in shares),
    ]


def _interval(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
