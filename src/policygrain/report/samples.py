"""The first evaluated responses of a study or of a run, for people to read."""

from __future__ import annotations

import pandas as pd

from ..paths import START, EvaluationFolder
from ..records import ModelEvaluation
from ..results import StudyResults, evaluated_samples

EACH = 3  # responses per benchmark
SHOWN = ["benchmark", "id", "problem", "response", "gold", "answer", "outcome", "truncated"]


def first_rows(results: StudyResults) -> pd.DataFrame:
    """The first responses of one model to each benchmark, with columns `model` and `SHOWN`.

    The model is the first evaluated run of the study, or an initial model if no run is evaluated yet; without any
    evaluation there are no rows.
    """
    evaluations = results.model_evaluations
    names = sorted(evaluations, key=lambda name: name.startswith(f"{START}/"))[:1]
    parts = [first_responses(results.folder.evaluation(n), evaluations[n]).assign(model=n) for n in names]
    return pd.concat(parts or [pd.DataFrame()], ignore_index=True).reindex(columns=["model", *SHOWN])


def first_responses(folder: EvaluationFolder, evaluation: ModelEvaluation) -> pd.DataFrame:
    """The first responses of a model to each benchmark, with columns `SHOWN`; every run has the same problems."""
    rows = pd.concat([evaluated_samples(folder, record).head(EACH) for record in evaluation.records])
    return rows[SHOWN].fillna({"answer": ""})
