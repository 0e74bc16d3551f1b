"""The artefacts of a study, and which of them depend on a key of the schema.

Each key names the artefacts that depend on it directly; indirect dependencies are in `fingerprint.UPSTREAM`.
"""

from __future__ import annotations

from typing import Any, Literal

Artefact = Literal[
    "training_data",
    "benchmarks",
    "start_model",
    "run",
    "estimators",
    "rounds",
    "evaluation",
    "figures",
    "tracking",
]


def _decides(*artefacts: Artefact) -> dict[str, Any]:
    return {"decides": list(artefacts)}


NOTHING = _decides()  # memory, limits, checkpoints, the division into jobs
TRAINING_DATA = _decides("training_data")
BENCHMARKS = _decides("benchmarks")
ALL_DATA = _decides("training_data", "benchmarks")
START = _decides("start_model")
EVERY_MODEL = _decides("start_model", "run", "estimators", "rounds", "evaluation")
RUN = _decides("run")
POLICY = _decides("run", "estimators", "rounds")
POLICY_AND_EVALUATION = _decides("run", "estimators", "rounds", "evaluation")
ESTIMATORS = _decides("estimators")
ROUNDS = _decides("rounds")
EVALUATION = _decides("evaluation")
BENCHMARKS_AND_EVALUATION = _decides("benchmarks", "evaluation")
RUN_MATRIX = _decides("figures")  # which runs there are
FIGURES = _decides("figures")
TRACKING = _decides("tracking")
