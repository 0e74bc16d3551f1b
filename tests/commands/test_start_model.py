"""`policygrain start-model`: when an initial model is made again."""

from __future__ import annotations

from pathlib import Path

import yaml

from policygrain.cli import main
from policygrain.files import read_json

from ..support.small import SMALL


def test_a_start_model_is_made_again_when_training_problems_change(tmp_path: Path) -> None:
    model = {**SMALL["model"], "warm_start": {"steps": 0, "mixed_steps": 0}}
    study, data, start = tmp_path / "study.yaml", tmp_path / "data", tmp_path / "start"

    def make(name: str, seed: int) -> str:
        study.write_text(yaml.safe_dump({**SMALL, "model": model, "data": {**SMALL["data"], "seed": seed}}))
        assert main(["prepare", "--config", str(study), "--out", str(data)]) == 0
        done = tmp_path / f"{name}.json"
        options = ["--config", str(study), "--data", str(data), "--out", str(start), "--done", str(done)]
        assert main(["start-model", *options]) == 0
        record = read_json(start / "start.json")
        assert read_json(done)["results"] == {"seed0": record["digest"]}
        return str(record["settings"]["training_data"])

    first = make("first", seed=1)
    weights = (start / "model.safetensors").stat().st_mtime_ns
    assert make("again", seed=1) == first
    assert (start / "model.safetensors").stat().st_mtime_ns == weights, "it was up to date"
    assert make("changed", seed=2) != first
    assert (start / "model.safetensors").stat().st_mtime_ns != weights
