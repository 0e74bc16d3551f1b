"""Records of training runs with chosen learning curves, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from policygrain.paths import START, StudyFolder
from policygrain.records import write_record
from policygrain.results import StudyResults
from policygrain.study import Study, parse_study
from policygrain.study.fingerprint import Fingerprints, measured_starts, start_seeds

from ..conftest import ROOT
from ..support.made_up import SHARED, made_up_estimators, made_up_rounds, make_up_evaluation, make_up_run
from ..support.small import small_study

Curve = Callable[[str, int], Sequence[float]]  # arm and seed → validation accuracy before each step and at the end
HEADLINE = {"methods": ["grpo", "dapo", "tepo", "mpo"], "vary": {"updates_per_batch": [2, 16]}}


def study_of(seeds: int | Sequence[int] = 8, **changes: Any) -> Study:
    """Four methods with 2 and 16 updates per batch."""
    return small_study(
        seeds=list(range(seeds) if isinstance(seeds, int) else seeds),
        **{"experiments": {"headline": HEADLINE}} | changes,
    )


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
    results, fingerprints = StudyFolder(folder), Fingerprints(study)
    results.path.mkdir(parents=True, exist_ok=True)
    for run in fingerprints.matrix.runs:
        make_up_run(fingerprints, results, run, rows_of(curve(run.arm, run.seed)))
    names = [f"{START}/seed{s}" for s in start_seeds(study)] + [run.name for run in fingerprints.matrix.evaluated]
    for name in names:
        count = (right or {}).get(name.split("/")[0], 6) + int(name[-1]) % 2
        make_up_evaluation(study, results, name, count)
    content = study.model_dump(mode="json") | {"base": None}
    results.study.write_text(yaml.safe_dump(content, sort_keys=False))
    return StudyResults(folder)


def effects(**points: float) -> Curve:
    """Learning curves that rise to 50% at the end; an arm's area is ``points`` higher, give or take a seed's luck."""

    def curve(arm: str, seed: int) -> list[float]:
        name = arm.split("+", maxsplit=1)[0]
        luck = np.random.default_rng([seed, len(name), ord(name[0])]).normal(0, 0.002)
        more = points.get(name, 0.0) / 100 + luck
        return [0.3, 0.4 + more, 0.45 + more, 0.5 + more, 0.5 + more, 0.5 + more]

    return curve


def write_estimators(results: StudyResults, value: Callable[[str, int, int], Mapping[str, float]]) -> None:
    """Estimators' records: ``value`` of method, initial model and distance gives the columns that are not 1."""
    for start in measured_starts(results.study, results.study.estimators):
        record = made_up_estimators(Fingerprints(results.study), start, value)
        write_record(results.folder.estimators(start), record)


def write_rounds(
    results: StudyResults, reward: Callable[[str, int, int, int], float], entropy: Callable[[str], float] | None = None
) -> None:
    """Rounds' records: ``reward`` of method, initial model, pool and number of updates; ``entropy`` after the last."""
    for start in measured_starts(results.study, results.study.rounds):
        record = made_up_rounds(Fingerprints(results.study), start, reward, entropy)
        write_record(results.folder.rounds(start), record)


def laptop(folder: Path, **points: float) -> StudyResults:
    """Records of the laptop study with eight seeds, whose controls are as expected.

    TEPO solves 9 of 12 problems with either sampler, the other arms 6. Its learning curve is 20 points higher, and it
    gains three points more in a round; the rest is equal but for noise.
    """
    rise = effects(**{"tepo": 20.0, "tepo_dynamic": 20.0, "poor_clip": -8.0} | points)

    def curve(arm: str, seed: int) -> list[float]:
        if "learning_rate" in arm:
            return [0.3] * 6
        heights = rise(arm, seed)
        # With shuffled rewards: the luck of a seed, and no rise.
        return [0.3] + [0.3 + heights[1] - 0.4] * 5 if "shuffle_rewards" in arm else heights

    right = {"tepo": 9, "tepo_dynamic": 9}
    experiments = {
        "headline": HEADLINE | {"vary": {"updates_per_batch": [1, 4, 16]}},
        "dynamic": {"methods": ["dapo", "tepo_dynamic"]},
    }
    eight = {"seeds": list(range(8)), "experiments": experiments, "sanity_checks": {"seeds": None}}
    study = parse_study({"base": "studies/laptop-full.yaml", "name": "eight", **eight}, ROOT / "laptop.yaml")
    results = write(study, folder, curve, right)
    write_estimators(results, lambda name, start, updates: {"norm": 1 + 0.01 * start + 0.001 * len(name)})
    noise = np.random.default_rng(2).normal(0, 0.001, 10_000).tolist()
    write_rounds(results, lambda name, start, pool, updates: 0.4 + 0.03 * (name == "tepo") + noise.pop())
    return results
