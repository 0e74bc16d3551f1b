"""Records of training runs with chosen learning curves, for the tests of this folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from policygrain.paths import StudyFolder
from policygrain.results import StudyResults
from policygrain.study import Study
from policygrain.study.runs import run_matrix

from ..support.made_up import SHARED, make_up, make_up_evaluation, make_up_run
from ..support.small import small_study

Curve = Callable[[str, int], Sequence[float]]  # arm and seed → validation accuracy before each step and at the end
HEADLINE = {"methods": ["grpo", "dapo", "tepo", "mpo"], "vary": {"updates_per_batch": [2, 16]}}


def study_of(seeds: int = 8, **changes: Any) -> Study:
    """Four methods with 2 and 16 updates per batch."""
    return small_study(seeds=list(range(seeds)), **{"experiments": {"headline": HEADLINE}} | changes)


def rows_of(heights: Sequence[float]) -> list[dict[str, Any]]:
    """Metrics of a run that is validated before each step."""
    rows = [
        {"step": s, "sampled_accuracy": h, "validation_accuracy": h, **SHARED}
        | {"clip_fraction_low": 0.01, "clip_fraction_high": 0.02}
        | {"total_updates": 2 * (s + 1), "total_tokens": 100 * (s + 1), "total_samples": 100 * (s + 1)}
        for s, h in enumerate(heights[:-1])
    ]
    end = {"step": len(rows), "validation_accuracy": heights[-1], "total_samples": 100 * len(rows)}
    return [*rows, end]


def write(study: Study, folder: Path, curve: Curve, right: Mapping[str, int] | None = None) -> StudyResults:
    """The records of all runs, and evaluations in which an arm solves ``right`` of 12 problems (6 by default).

    Seed s solves s mod 2 problems more, which cancels in pairs.
    """
    results = StudyFolder(make_up(study, folder, {}))
    for run in run_matrix(study).runs:
        make_up_run(study, results, run, rows_of(curve(run.arm, run.seed)))
    for name, _ in list(results.evaluations()):
        make_up_evaluation(study, results, name, (right or {}).get(name.split("/")[0], 6) + int(name[-1]) % 2)
    return StudyResults(folder)


def effects(**points: float) -> Curve:
    """Learning curves that rise to 50% at the end; an arm's area is ``points`` higher, give or take a seed's luck."""

    def curve(arm: str, seed: int) -> list[float]:
        name = arm.split("+", maxsplit=1)[0]
        luck = np.random.default_rng([seed, len(name), ord(name[0])]).normal(0, 0.002)
        more = points.get(name, 0.0) / 100 + luck
        return [0.3, 0.4 + more, 0.45 + more, 0.5 + more, 0.5 + more, 0.5 + more]

    return curve
