"""Stages called by hand: what they make, leave and refuse."""

from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.files import read_json
from policygrain.paths import StudyFolder

from ..support.small import SMALL, write_study
from . import CASES

UNTRAINED = {**SMALL["model"], "warm_start": {"steps": 0, "mixed_steps": 0}}


def configured(folder: Path, **changes: Any) -> list[str]:
    return ["--config", str(write_study(folder / "study.yaml", {**SMALL, **changes}))]


@pytest.mark.parametrize(("command", "says"), CASES["stages"])
def test_what_cannot_be_done_is_said_before_anything_is_computed(command, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, *configured(tmp_path), "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error and not (tmp_path / "run").exists()


def test_a_start_model_is_made_again_when_training_problems_change(tmp_path):
    start = tmp_path / "start" / "seed0"
    made: dict[str, tuple[str, int]] = {}
    for name, seed in (("first", 1), ("again", 1), ("changed", 2)):
        options = [*configured(tmp_path, model=UNTRAINED, data={**SMALL["data"], "seed": seed})]
        options += ["--results", str(tmp_path)]
        assert main(["prepare", *options]) == 0 == main(["start-model", *options])
        record = read_json(start / "start.json")
        assert read_json(start.with_suffix(".json")) == record
        made[name] = record["settings"]["training_data"], (start / "model.safetensors").stat().st_mtime_ns
    assert made["again"] == made["first"], "it was up to date"
    assert all(x != y for x, y in zip(made["changed"], made["first"], strict=True))


def test_the_stages_of_a_study_by_hand(tmp_path, monkeypatch):
    """In results/NAME, where the next stage finds what the one before has made; a second time nothing changes."""
    monkeypatch.chdir(tmp_path)
    training = {**SMALL["training"], "steps": 1, "validate_every": 1}
    config = configured(tmp_path, model=UNTRAINED, training=training)
    results = StudyFolder(Path("results") / SMALL["name"])
    for command in (["prepare"], ["start-model"], ["train", "--arm", "grpo"], ["evaluate", "--arms", "start", "grpo"]):
        assert main([*command, *config]) == 0
    run, start = results.run("grpo", 0), results.start(0)
    for place in (start.path / "model.safetensors", run.summary, results.evaluation("grpo/seed0").record):
        assert place.exists(), place
    before, timings = run.metrics.read_bytes(), run.timings.read_bytes()
    run.summary.unlink()  # as Snakemake does before it starts a job
    assert main(["train", *config]) == 0 and main(["evaluate", *config]) == 0
    assert run.summary.read_bytes() == run.ended.read_bytes()
    assert (run.metrics.read_bytes(), run.timings.read_bytes()) == (before, timings), "no step was made again"
    run.metrics.unlink()
    assert main(["train", *config]) == 2, "a run without its metrics is no finished run"
