"""Stages called by hand: what they make, what they leave, and what is refused before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from policygrain.cli import main
from policygrain.files import read_json
from policygrain.paths import StudyFolder

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
    start = tmp_path / "start"
    config = write_study(tmp_path / "study.yaml", {**SMALL, "model": {"start": str(start)}})
    start.mkdir()
    (start / "config.json").write_text('{"model_type": "qwen2"}')
    command = ["train", "--config", str(config), "--run-dir", str(tmp_path / "run")]
    assert main([*command, "--arm", "grpo", "--seed", "0"]) == 2
    error = capsys.readouterr().err
    assert str(start) in error and "Traceback" not in error


def test_a_start_model_is_made_again_when_training_problems_change(tmp_path: Path) -> None:
    model = {**SMALL["model"], "warm_start": {"steps": 0, "mixed_steps": 0}}
    study, start = tmp_path / "study.yaml", tmp_path / "start" / "seed0"

    def make(name: str, seed: int) -> str:
        study.write_text(yaml.safe_dump({**SMALL, "model": model, "data": {**SMALL["data"], "seed": seed}}))
        options = ["--config", str(study), "--results", str(tmp_path)]
        assert main(["prepare", *options]) == 0
        done = tmp_path / f"{name}.json"
        assert main(["start-model", *options, "--done", str(done)]) == 0
        record = read_json(start / "start.json")
        assert read_json(done)["results"] == {"seed0": record["digest"]}
        return str(record["settings"]["training_data"])

    first = make("first", seed=1)
    weights = (start / "model.safetensors").stat().st_mtime_ns
    assert make("again", seed=1) == first
    assert (start / "model.safetensors").stat().st_mtime_ns == weights, "it was up to date"
    assert make("changed", seed=2) != first
    assert (start / "model.safetensors").stat().st_mtime_ns != weights


def test_the_stages_of_a_study_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In results/NAME, where the next stage finds what the one before has made; a second time nothing changes."""
    monkeypatch.chdir(tmp_path)
    warm_start = {"steps": 0, "mixed_steps": 0}
    training = {**SMALL["training"], "steps": 1, "validate_every": 1}
    changes = {"model": {**SMALL["model"], "warm_start": warm_start}, "training": training}
    config = ["--config", str(write_study(tmp_path / "study.yaml", {**SMALL, **changes}))]
    results = StudyFolder(Path("results") / SMALL["name"])
    for command in (["prepare"], ["start-model"], ["train", "--arm", "grpo"], ["evaluate", "--shard", "00"]):
        assert main([*command, *config]) == 0
    run, start = results.run("grpo", 0), results.start(0)
    assert not run.data.path.exists() and not run.start.path.exists(), "those of the study were there"
    for place in (start.path / "model.safetensors", run.summary, results.evaluation("grpo/seed0").record):
        assert place.exists(), place
    before = run.metrics.read_bytes()
    assert main(["train", *config]) == 0 and main(["evaluate", *config]) == 0
    assert run.metrics.read_bytes() == before


def test_options_that_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(write_study(tmp_path / "study.yaml", SMALL)), "--results", str(tmp_path)]
    assert main(["train", *config, "--seeds", "0", "1", "--run-dir", str(tmp_path / "run")]) == 2
    assert "--run-dir: is the folder of one run" in capsys.readouterr().err
    for command in ("start-model", "evaluate"):
        assert main([command, *config]) == 2
        assert "data: has no problems yet; run `policygrain prepare` first" in capsys.readouterr().err
    assert main(["evaluate", *config, "--shard", "01"]) == 2
    assert "--shard: there is no group '01'" in capsys.readouterr().err
