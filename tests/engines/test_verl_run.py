"""A whole run by verl on a CPU, killed once, with a method that reads prompts: `make test-peers` (some minutes)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.cli import main
from policygrain.engines.verl_config import verl_version
from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_metrics, run_summary
from policygrain.study import load_study

from ..conftest import ROOT
from ..support.small import SMALL

pytestmark = pytest.mark.verl
TIMEOUT = 1800
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT / 'tests' / 'support' / 'for_verl'}:{ROOT / 'src'}",
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    "VERL_PLATFORM": "cpu",
    # So its registry of training engines finds FSDP, whose code asks the platform for the device.
    "VERL_ENGINE_DEVICE": "cuda",
    "HYDRA_FULL_ERROR": "1",
    "RAY_worker_niceness": "0",  # Ray would add 15 to this process's
}


def newest(run: Path) -> int:
    file = run / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"
    return int(file.read_text()) if file.exists() else 0


def has_logged_an_update(run: Path) -> bool:
    """verl logs a step after it has saved it; one that is killed in between has no metrics."""
    return any('"actor/grad_norm"' in file.read_text() for file in (run / "verl").glob("metrics*.jsonl"))


def test_a_whole_run_by_verl_that_is_killed_once(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        verl_version()
    except PackageNotFoundError:
        pytest.skip("there is no environment with verl (make setup-verl)")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    on_cpu = load_study(ROOT / "studies" / "engines-verl.yaml").training.verl
    training = {"trainer": "verl", "verl": on_cpu, "steps": 2, "validate_every": 1}
    training |= {"weight_decay": 0.1, "learning_rate": 1e-3, "prompts_per_step": 16}
    content = {**SMALL, "training": {**SMALL["training"], **training}, "experiments": {"e": {"methods": ["by_prompt"]}}}
    content |= {"methods": {"by_prompt": {"base": "grpo", "aggregation": "prompt_mean"}}}
    config = tmp_path / "study.yaml"
    config.write_text(yaml.safe_dump(content))
    run = tmp_path / "run"
    arguments = ["train", "--config", str(config), "--results", str(made[0].parent), "--run-dir", str(run)]
    process = subprocess.Popen([sys.executable, "-m", "policygrain.cli", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + TIMEOUT
    while (
        not (newest(run) >= 1 and has_logged_an_update(run)) and process.poll() is None and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    _, printed = process.communicate()
    assert newest(run) >= 1, printed + (run / "verl" / "verl.log").read_text()[-5000:]
    assert main(arguments) == 0, (run / "verl" / "verl.log").read_text()[-5000:]
    summary = run_summary(RunFolder(run))
    assert summary.environment.engine == "verl" and summary.final.steps == 2
    rows = run_metrics(RunFolder(run))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(0 <= row["validation_accuracy"] <= 1 for row in rows)
    assert all(row["gradient_norm"] >= 0 and "ratio_max" in row for row in rows[:-1])
    assert len(list((run / "verl").glob("metrics*.jsonl"))) == 2, "the second attempt resumed the first"
    done = (run / "summary.json").stat().st_mtime_ns
    assert main(arguments) == 0 and (run / "summary.json").stat().st_mtime_ns == done
    _is_paired_with_the_loop(arguments, content, tmp_path, rows)


def _is_paired_with_the_loop(
    arguments: list[str], content: dict[str, Any], folder: Path, rows: list[dict[str, Any]]
) -> None:
    """The loop samples the same responses, and makes the same updates up to rounding."""
    config, run = folder / "loop.yaml", folder / "loop"
    training = {key: value for key, value in content["training"].items() if key not in ("trainer", "verl")}
    config.write_text(yaml.safe_dump(content | {"training": training}))
    places = {str(folder / "study.yaml"): str(config), str(folder / "run"): str(run)}
    assert main([places.get(argument, argument) for argument in arguments]) == 0
    loop = run_metrics(RunFolder(run))
    samples = ("accuracy", "reward_mean", "response_length_mean", "validation_accuracy", "validation_length")
    for by_verl, by_loop in zip(rows, loop, strict=True):
        for key in (*samples, "gradient_norm", "ratio_max", "entropy_old"):
            assert by_verl.get(key, 0.0) == pytest.approx(by_loop.get(key, 0.0), rel=1e-3), key
    assert sum(row["gradient_norm"] > 0 for row in loop[:-1]) == 2, "updates were made, and are compared"
