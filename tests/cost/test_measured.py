"""Constants fitted to the records of a finished study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.cli import main
from policygrain.cost.constants import Workload, read_constants
from policygrain.cost.loads import Load, Speed
from policygrain.cost.measured import against, fit
from policygrain.cost.shapes import shape_of
from policygrain.cost.workload import Planner
from policygrain.results.layout import StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.study import Study
from policygrain.study.fingerprint import Fingerprints

from ..support.made_up import PROBLEMS, make_up_evaluation, make_up_run
from ..support.small import small_study


def test_a_fit_recovers_call_and_rate() -> None:
    loads = [Load(1, 5e9), Load(10, 1e9), Load(4, 4e9)]
    made = Speed(call=0.25, rate=2e9)
    found = fit(loads, [made.seconds(load) for load in loads])
    assert found == pytest.approx({"call": 0.25, "rate": 2e9})
    # A coefficient that would be negative is left out.
    assert fit([Load(1, 1e9), Load(10, 2e9)], [1.0, 2.0])["call"] == 0.0


def made_up_results(study: Study, folder: Path, speeds: dict[str, Speed]) -> Path:
    """Records of every run and evaluation, with the timings of a device of these speeds and responses of 7 tokens."""
    expected = Workload(prompt_tokens=30, response_tokens=7, draws=2, source="made up")
    planner = Planner(study, shape_of(study.model, {}), expected)
    fingerprints, results = Fingerprints(study), StudyFolder(folder)
    for run in fingerprints.matrix.runs:
        arm = fingerprints.matrix.arms[run.arm]
        settings, loads = arm.training(study), planner.step(arm).loads
        samples = settings.prompts_per_step * settings.group * (2 if arm.method(study).sampler.dynamic else 1)
        names = {"generate": "decode_transformers", "log_probs": "score", "update": "update", "reward": "judge"}
        spent = {f"seconds/{n}": speeds[p].seconds(loads[p]) for n, p in names.items()}  # type: ignore[index]
        rows: list[dict[str, Any]] = [
            {"step": step, "total_samples": samples * (step + 1), "total_tokens": 7 * samples * (step + 1)}
            for step in range(settings.steps)
        ]
        last = {**rows[-1], "step": settings.steps, "validation_accuracy": 0.5}
        timings = [{"step": step, **spent} for step in range(settings.steps)]
        make_up_run(fingerprints, results, run, [*rows, last], timings)
    loads = planner.evaluation().loads
    names = {"load": "load", "engine": "decode_transformers", "grade": "judge"}
    spent = {n: speeds[p].seconds(loads[p]) for n, p in names.items()}  # type: ignore[index]
    for run in fingerprints.matrix.evaluated:
        make_up_evaluation(study, results, run.name, 6, spent, tokens=7 * PROBLEMS * 2)
    return folder


def test_constants_calibrated_on_records_predict_them(tmp_path: Path) -> None:
    study = small_study(
        experiments={"headline": {"methods": ["grpo", "dapo"], "vary": {"updates_per_batch": [1, 2], "group": [4, 8]}}},
        evaluation={"benchmarks": [{"name": "count", "source": "count", "size": PROBLEMS}]},
    )
    speeds = {
        "load": Speed(call=0.5),
        "decode_transformers": Speed(call=0.01, rate=1e9),
        "score": Speed(call=0.02, rate=2e9),
        "update": Speed(call=0.03, rate=3e9),
        "judge": Speed(call=0.001),
    }
    results = made_up_results(study, tmp_path / "results", speeds)
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study.model_dump(mode="json")))
    command = ["plan", str(path), "--constants", str(tmp_path / "cpu.yaml")]
    (tmp_path / "cpu.yaml").write_text(
        "workloads: {tiny: {prompt_tokens: 30, response_tokens: 12, draws: 2, source: none}}"
    )
    assert main([*command, "--calibrate", str(results), "--out", str(tmp_path / "cpu.yaml")]) == 0
    calibrated = read_constants(tmp_path / "cpu.yaml")
    device = calibrated.device("cpu")
    assert device.measured and device.title == "a computer"
    for phase, speed in speeds.items():
        found = device.speed(phase)  # type: ignore[arg-type]
        assert (found.call, found.rate or 0) == pytest.approx((speed.call, speed.rate or 0), rel=0.01)
    assert calibrated.workload("tiny").response_tokens == 7 and calibrated.workload("tiny").draws == 2
    rows = against(StudyResults(results, study), calibrated, device)
    for rule, phases in {"train": 5, "evaluate": 4}.items():
        assert [row["ratio"] for row in rows if row["rule"] == rule] == pytest.approx([1.0] * phases, rel=0.01)
