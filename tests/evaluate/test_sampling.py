"""Sampled responses: in parts, resumed, put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.evaluate.evaluation import evaluate
from policygrain.evaluate.sampling import all_responses, queries_of
from policygrain.model.loading import load_model
from policygrain.results.layout import DataFolder, StudyFolder
from policygrain.rollout.torch_engine import TorchEngine
from policygrain.tasks.problem import read_problems
from policygrain.tasks.prompts import PromptRenderer

from ..support.small import make_start, small_study


def test_parts_are_put_together_and_nothing_is_sampled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, start = make_start(tmp_path)
    data, study, models = DataFolder(folder), small_study(), {"start/seed0": start}
    results, whole = StudyFolder(tmp_path / "out"), StudyFolder(tmp_path / "whole")
    evaluate(study, models, data, whole)
    store = results.evaluation("start/seed0")
    evaluate(study, models, data, results, part=(1, 3))
    evaluate(study, models, data, results, part=(0, 3))
    assert not store.record.exists() and len(store.all_responses()) == 2
    # A crash left half a line behind: that response and the missing part are sampled by the call that grades.
    torn = next(path for path in store.all_responses() if path.name.endswith("-1of3.jsonl"))
    torn.write_text(torn.read_text()[:-20])
    asked: list[int] = []
    generate = TorchEngine.generate
    monkeypatch.setattr(
        TorchEngine, "generate", lambda self, requests: asked.append(len(requests)) or generate(self, requests)
    )
    evaluate(study, models, data, results)
    assert asked == [10 + 1]
    assert not store.all_responses()
    assert store.samples("count").read_bytes() == whole.evaluation("start/seed0").samples("count").read_bytes()


def test_missing_parts_are_named(tmp_path: Path) -> None:
    folder, start = make_start(tmp_path)
    data, study = DataFolder(folder), small_study()
    results = StudyFolder(tmp_path / "out")
    evaluate(study, {"start/seed0": start}, data, results, part=(0, 2))
    store = results.evaluation("start/seed0")
    (path,) = store.all_responses()
    key = path.name.split("-")[1]
    tokenizer = load_model(str(start))[1]
    problems = {"count": read_problems(data.benchmark("count"))}
    queries = queries_of(study, problems, PromptRenderer(tokenizer, study.prompt))
    with pytest.raises(UserError, match=r"15 of 30 responses are missing \(count\); existing parts: sampled-.*-0of2"):
        all_responses(queries, store, key)
