"""`policygrain check` and the first rule of a workflow find what would otherwise fail after training."""

from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.commands.check import check_study, notes
from policygrain.errors import UserError
from policygrain.study import Study

from ..support.files import write_lines
from ..support.small import SMALL, small_study, write_study

QUESTIONS = [{"id": str(i), "problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(5)]


def of_file(folder: Path, size: int = 3, **changes: Any) -> Study:
    """A study of five problems in a file."""
    write_lines(folder / "own.jsonl", QUESTIONS)
    data = {"root": str(folder), "train": ["own.jsonl"], "train_size": size, "validation_size": 2}
    return small_study(data=data, model={"tiny": {"vocabulary": 300}, "warm_start": {"steps": 0}}, **changes)


def test_a_start_that_is_no_model_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 99}')
    for start, says in (
        ("some/model", r"'some/model' is neither a folder nor .*`hf download some/model`"),
        (str(folder), r"is not a model with a tokenizer: tokenizer_config\.json is missing"),
    ):
        with pytest.raises(UserError, match=says):
            check_study(small_study(model={"warm_start": {"steps": 0}, "start": start}))


def test_ids_of_a_benchmark_are_unique(tmp_path):
    """Scores are grouped by them; problems after those that are used do not count."""
    write_lines(tmp_path / "twice.jsonl", [*QUESTIONS[:2], QUESTIONS[0]])
    benchmark = {"name": "a", "source": "twice.jsonl"}
    check_study(of_file(tmp_path, evaluation={"benchmarks": [benchmark | {"size": 2}]}))
    with pytest.raises(UserError, match="a: 2 problems have the id '0'"):
        check_study(of_file(tmp_path, evaluation={"benchmarks": [benchmark]}))


def test_what_is_allowed_and_probably_not_meant_is_said(tmp_path):
    of_training = {"benchmarks": [{"name": "mine", "source": "own.jsonl"}]}
    pretrained = {"model": {"start": "some/model"}}
    path = write_study(tmp_path / "ranges.yaml", {**SMALL, "name": "ranges", **pretrained})
    for study, expected in (
        (of_file(tmp_path, evaluation=of_training), "evaluation.benchmarks: mine (own.jsonl) is also in data.train"),
        (of_file(tmp_path, size=50), "own.jsonl has 5 problems, fewer than train_size + validation_size (52)"),
        (small_study(training={"updates_per_batch": 1}), "all importance ratios are 1"),
        (small_study(**pretrained, tuned_on=[str(path)]), "may not hold for other models (rule 4"),
    ):
        [note] = notes(study)
        assert expected in note
    assert notes(small_study(tuned_on=[str(path)])) == []


def test_prepare_checks_the_study_before_it_writes(tmp_path):
    """It is the first job of a workflow."""
    study = write_study(tmp_path / "study.yaml", SMALL | {"prompt": {"chat": True}})
    assert main(["prepare", "--config", str(study), "--results", str(tmp_path)]) == 2
    assert not (tmp_path / "data").exists()
    assert main(["check", "--config", str(study)]) == 2
