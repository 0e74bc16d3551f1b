"""Runs by verl on a CPU (`make test-verl`, some minutes): from start to figures, killed once; and by a command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policygrain import digests
from policygrain.integrations.options import EXPORTED
from policygrain.paths import DataFolder, StudyFolder
from policygrain.results import run_metrics, run_summary
from policygrain.study.runs import run_matrix
from policygrain.trainers.verl import export, verl_python

from ..support.small import SMALL, small_study, write_study
from ..support.snakemake import TIMEOUT, options, planned, snakemake
from ..support.verl_on_cpu import ENVIRONMENT, SETTINGS

pytestmark = [pytest.mark.verl, pytest.mark.needs("verl")]
# A method of the study's own, by both trainers, with enough responses that some rewards differ in each step.
TRAINING = {"verl": SETTINGS, "validate_every": 1, "weight_decay": 0.1, "learning_rate": 1e-3, "prompts_per_step": 16}
CHANGES = {
    "name": "by-verl",
    "seeds": [0],
    "training": TRAINING,
    "methods": {"by_token": {"base": "grpo", "aggregation": "token_mean"}},
    "experiments": {"headline": {"methods": ["by_token"], "vary": {"trainer": ["policygrain", "verl"]}}},
    "evaluation": {"engine": "transformers"},
}


def saved_and_logged_a_step(run: Path) -> bool:
    """verl logs a step after it has saved it; one that is killed in between has no metrics."""
    newest = run / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"
    logs = (run / "verl").glob("metrics*.jsonl")
    return newest.exists() and any('"actor/grad_norm"' in log.read_text() for log in logs)


def test_the_smoke_study_by_verl_that_is_killed_once(root, tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    study = write_study(tmp_path / "study.yaml", {"base": str(root / "studies" / "smoke-verl.yaml"), **CHANGES})
    results = StudyFolder(tmp_path / "results" / "by-verl")
    by_verl, by_loop = (results.run(arm, 0) for arm in ("by_token", "by_token+trainer=policygrain"))
    command = [sys.executable, "-m", "snakemake", *options(root, tmp_path, study), "--cores", "2", "all"]
    with subprocess.Popen(command, start_new_session=True) as process:
        end = time.monotonic() + TIMEOUT
        while process.poll() is None and time.monotonic() < end and not saved_and_logged_a_step(by_verl.path):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)  # with its jobs, as a power cut would
    assert not by_verl.summary.exists()
    snakemake(root, tmp_path, study, "all")
    summary, rows = run_summary(by_verl), run_metrics(by_verl)
    assert summary.environment.engine == "verl" and summary.final.steps == 2
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert len(list(by_verl.verl.glob("metrics*.jsonl"))) == 2, "the second attempt resumed the first"
    assert "| by token |" in (results.path / "tables" / "results.md").read_text()
    for figure in ("benchmarks", "dynamics"):
        assert (results.path / "figures" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
    assert planned(root, tmp_path, study, "all") == {}
    # The loop samples the same responses, and makes the same updates up to rounding.
    loop = run_metrics(by_loop)
    samples = ("accuracy", "reward_mean", "response_length_mean", "validation_accuracy")
    for row, expected in zip(rows, loop, strict=True):
        for key in (*samples, "gradient_norm", "ratio_max", "entropy_old", "learning_rate"):
            assert row.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), rel=1e-3), key
    assert sum(row["gradient_norm"] > 0 for row in loop[:-1]) == 2, "updates were made, and are compared"


def test_verl_by_a_command_of_ones_own(made, root, tmp_path, monkeypatch):
    """`main_ppo` with verl's own loss, as whoever has a configuration of verl would start it, in a whole study."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    as_trainer = small_study(training={"trainer": "verl", "verl": SETTINGS, "steps": 2})
    (arm,) = run_matrix(as_trainer).arms.values()
    export(as_trainer, arm, 0, str(made[1]), DataFolder(made[0]), tmp_path / "verl")
    monkeypatch.setenv(EXPORTED, str(tmp_path / "verl"))
    changes = {
        "data.seed": "{seed}",
        "actor_rollout_ref.model.path": "{start}",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
        "trainer.default_local_dir": "{out}/checkpoints",
    }
    overrides = " ".join(f"{key}={value}" for key, value in changes.items())
    training = {
        "trainer": "command",
        "command": f"VERL_FILE_LOGGER_PATH={{out}}/log.jsonl {verl_python()} -m verl.trainer.main_ppo "
        f"--config-path {tmp_path}/verl --config-name verl {overrides} # {{method}}",
        "logs": {"file": "{out}/log.jsonl", "format": "verl"},
        "metrics": {"validation_accuracy": "val-core/small/acc/mean@1", "entropy_old": "actor/entropy"},
        "model": "{out}/checkpoints/global_step_2/actor/huggingface",
        "steps": 2,
        "validate_every": 2,
    }
    file = write_study(tmp_path / "study.yaml", {**SMALL, "training": training, "methods": {"grpo": {}}})
    snakemake(root, tmp_path, file, "all")
    results = StudyFolder(tmp_path / "results" / "small")
    run = results.run("grpo", 0)
    rows = run_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[1]["entropy_old"] > 0
    assert digests.of_model(run.model) != digests.of_model(results.start(0).path)
    assert "| GRPO |" in (results.path / "tables" / "results.md").read_text()
