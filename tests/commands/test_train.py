"""`policygrain train`: which arm is trained, and what is refused before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.cli import main

from ..support.small import SMALL, write_study


def test_a_misspelt_arm_is_refused_before_a_start_model_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_study(tmp_path / "study.yaml", SMALL)
    run = tmp_path / "run"
    assert main(["train", "--config", str(config), "--arm", "grp", "--seed", "0", "--run-dir", str(run)]) == 2
    error = capsys.readouterr().err
    assert "'grp'" in error and "Did you mean 'grpo'" in error and "Traceback" not in error
    assert not run.exists()


def test_a_start_model_without_a_tokenizer_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_study(tmp_path / "study.yaml", SMALL)
    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text('{"model_type": "qwen2"}')
    command = ["train", "--config", str(config), "--start", str(start), "--run-dir", str(tmp_path / "run")]
    assert main([*command, "--arm", "grpo", "--seed", "0"]) == 2
    error = capsys.readouterr().err
    assert str(start) in error and "Traceback" not in error
