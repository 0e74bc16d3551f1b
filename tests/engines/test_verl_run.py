"""The smoke study by verl on a CPU, from start to figures, killed once: `make test-peers` (some minutes)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from policygrain.engines.verl_config import verl_version
from policygrain.results.layout import RunFolder, StudyFolder
from policygrain.results.reader import run_metrics, run_summary

from ..support.small import write_study
from ..support.snakemake import TIMEOUT, kill_when, planned, snakemake

pytestmark = pytest.mark.verl
# A method that reads prompts, by both trainers, with enough responses that some rewards differ in each step.
TRAINING = {"validate_every": 1, "weight_decay": 0.1, "learning_rate": 1e-3, "prompts_per_step": 16}
CHANGES = {
    "name": "by-verl",
    "seeds": [0],
    "training": TRAINING,
    "methods": {"by_prompt": {"base": "grpo", "aggregation": "prompt_mean"}},
    "experiments": {"headline": {"methods": ["by_prompt"], "vary": {"trainer": ["policygrain", "verl"]}}},
    "evaluation": {"engine": "transformers"},
}


def saved_and_logged_a_step(run: Path) -> bool:
    """verl logs a step after it has saved it; one that is killed in between has no metrics."""
    newest = run / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"
    logs = (run / "verl").glob("metrics*.jsonl")
    return newest.exists() and any('"actor/grad_norm"' in log.read_text() for log in logs)


def test_the_smoke_study_by_verl_that_is_killed_once(root: Path, tmp_path: Path) -> None:
    try:
        verl_version()
    except PackageNotFoundError:
        pytest.skip("there is no environment with verl (make setup-verl)")
    study = write_study(tmp_path / "study.yaml", {"base": str(root / "studies" / "smoke-verl.yaml"), **CHANGES})
    results = StudyFolder(tmp_path / "results" / "by-verl")
    by_verl, by_loop = (results.run(arm, 0) for arm in ("by_prompt", "by_prompt+trainer=policygrain"))
    kill_when(lambda: saved_and_logged_a_step(by_verl.path), root, study, tmp_path, "all", seconds=TIMEOUT)
    assert not by_verl.summary.exists()
    snakemake(root, tmp_path, study, "all")
    summary, rows = run_summary(by_verl), run_metrics(by_verl)
    assert summary.environment.engine == "verl" and summary.final.steps == 2
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert len(list(by_verl.verl.glob("metrics*.jsonl"))) == 2, "the second attempt resumed the first"
    assert "| by prompt |" in (results.path / "tables" / "results.md").read_text()
    for figure in ("benchmarks", "dynamics"):
        assert (results.path / "figures" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
    assert planned(root, tmp_path, study, "all") == {}
    _are_paired(by_verl, by_loop)


def _are_paired(by_verl: RunFolder, by_loop: RunFolder) -> None:
    """The loop samples the same responses, and makes the same updates up to rounding."""
    rows, loop = run_metrics(by_verl), run_metrics(by_loop)
    samples = ("accuracy", "reward_mean", "response_length_mean", "validation_accuracy", "validation_length")
    for row, expected in zip(rows, loop, strict=True):
        for key in (*samples, "gradient_norm", "ratio_max", "entropy_old"):
            assert row.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), rel=1e-3), key
    assert sum(row["gradient_norm"] > 0 for row in loop[:-1]) == 2, "updates were made, and are compared"
