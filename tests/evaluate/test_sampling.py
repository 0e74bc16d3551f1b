"""Sampled responses are not sampled again."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.evaluate import sampling
from policygrain.evaluate.evaluation import evaluate
from policygrain.model.torch_engine import TorchEngine
from policygrain.paths import DataFolder, StudyFolder

from ..support.small import small_study


def test_an_evaluation_that_was_stopped_samples_only_what_is_missing(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, study, models = DataFolder(made[0]), small_study(), {"start/seed0": made[1]}
    results, whole = StudyFolder(tmp_path / "out"), StudyFolder(tmp_path / "whole")
    evaluate(study, models, data, whole)
    store = results.evaluation("start/seed0")
    generate, asked = TorchEngine.generate, list[int]()

    def stopped(self: TorchEngine, requests: list[object]) -> object:
        asked.append(len(requests))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return generate(self, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(sampling, "CHUNK", 10)
    monkeypatch.setattr(TorchEngine, "generate", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(study, models, data, results)
    [torn] = store.all_responses()
    torn.write_text(torn.read_text()[:-20])  # a crash left half a line behind
    assert not store.record.exists()
    evaluate(study, models, data, results)
    assert asked == [10, 10, 10, 10, 1]
    assert not store.all_responses()
    assert store.samples.read_bytes() == whole.evaluation("start/seed0").samples.read_bytes()
