"""Evaluating models without a study: records, the table of several, what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.data.registry import sampling_of
from policygrain.errors import UserError
from policygrain.evaluate.any_model import EvaluationOptions, claim, named, study_of
from policygrain.paths import StudyFolder
from policygrain.results import model_evaluation

OPTIONS = ["--benchmarks", "count,largest", "--size", "5", "--max-tokens", "8", "--engine", "transformers"]
SAMPLED = [*OPTIONS, "--samples", "2", "--temperature", "1", "--grader", "numeric", "--prompt", "{problem}\n"]


def test_one_line_evaluates_a_model_and_another_one_joins_it(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = tmp_path / "out", tmp_path / "first"
    shutil.copytree(made[1], model)
    assert main(["evaluate-model", str(model), *SAMPLED, "--out", str(out)]) == 0
    assert "Average of the benchmarks" in capsys.readouterr().out
    folder = StudyFolder(out).evaluation(f"{model.name}/seed0")
    found = model_evaluation(folder)
    assert [(r.benchmark, r.n, r.problems) for r in found.records] == [("count", 2, 5), ("largest", 2, 5)]
    stamp = folder.samples("count").stat().st_mtime_ns
    other = tmp_path / "second"
    shutil.copytree(model, other)
    assert main(["evaluate-model", str(model), f"copy={other}", *SAMPLED, "--out", str(out)]) == 0
    assert folder.samples("count").stat().st_mtime_ns == stamp, "it is not sampled again"
    table = (out / "leaderboard.md").read_text()
    assert capsys.readouterr().out == table and table.startswith("| model | average | count | largest |")
    one, two = (line.split("|")[2:] for line in table.splitlines()[2:])
    assert one == two, "the same weights and seeds"
    assert {line.split("|")[1].strip() for line in table.splitlines()[2:]} == {model.name, "copy"}
    assert main(["show", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--benchmarks", "cuont"], "'cuont' is neither a family .* Did you mean 'count'"),
        (["--benchmarks", "count", "--samples", "4"], "--samples: several greedy responses are the same"),
        (["--benchmarks", "count", "--size", "0"], r"evaluation\.benchmarks\.0\.size"),
        (["--benchmarks", "count", "--prompt", "no place"], "prompt.template"),
        (["--benchmarks", "count", "--chat"], "prompt.chat: the model's tokenizer has no chat template"),
    ],
)
def test_what_cannot_be_asked_for_is_named(
    arguments: list[str], says: str, made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate-model", str(made[1]), *arguments, "--engine", "transformers", "--grader", "numeric"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, (32, 0.6, 1.0)),
        ({"temperature": 1.0}, (32, 1.0, 1.0)),
        ({"samples": 4}, (4, 0.6, 1.0)),
        ({"top_p": 0.9}, (32, 0.6, 0.9)),
        ({"temperature": 0.0}, (1, 0.0, 1.0)),
        ({"samples": 4, "temperature": 1.0, "top_p": 1.0}, (4, 1.0, 1.0)),
    ],
)
def test_what_is_not_asked_for_is_as_registered(asked: dict[str, Any], found: tuple[int, float, float]) -> None:
    study = study_of(EvaluationOptions(["aime24"], **asked), "x", "start")
    sampling = sampling_of(study, study.evaluation.benchmarks[0])
    assert (sampling.n, sampling.temperature, sampling.top_p) == found


def test_another_protocol_does_not_overwrite_results(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["evaluate-model", str(made[1]), *SAMPLED, "--out", str(out)]) == 0
    before = (out / "leaderboard.md").read_bytes()
    assert main(["evaluate-model", str(made[1]), *SAMPLED, "--samples", "3", "--out", str(out)]) == 2
    assert "another protocol (evaluation.sampling.n differs)" in capsys.readouterr().err
    assert (out / "leaderboard.md").read_bytes() == before


def test_a_folder_of_an_earlier_version_is_continued_and_what_is_no_study_is_named(tmp_path: Path) -> None:
    study, folder = study_of(EvaluationOptions(["count"]), "x", "start"), StudyFolder(tmp_path)
    claim(folder, study)
    folder.study.write_text(folder.study.read_text() + "rollouts: {where: colocated, servers: 1}\n")
    claim(folder, study)
    with pytest.raises(UserError, match=r"another protocol \(evaluation\.seed differs\)"):
        claim(folder, study_of(EvaluationOptions(["count"], seed=5), "x", "start"))
    for content in ("[", "a text"):
        folder.study.write_text(content)
        with pytest.raises(UserError, match=r"(?s)study\.yaml: .*\nChoose another folder with --out\."):
            claim(folder, study)


def test_what_is_no_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for model, says in (
        (str(tmp_path / "empty"), "is not a model: it has no config.json"),
        (str(tmp_path / "model.gguf"), "a GGUF file is not a model folder"),
        ("no such/model", "neither a folder nor a model that the hub provides"),
    ):
        assert main(["evaluate-model", model, *SAMPLED, "--out", str(tmp_path / "out")]) == 2
        assert says in capsys.readouterr().err


def test_names_of_models() -> None:
    models = ["Qwen/Qwen2.5-1.5B", "results/laptop/runs/tepo/seed0/model", "mine=/some/where/else"]
    assert named(models) == {
        "Qwen2.5-1.5B": "Qwen/Qwen2.5-1.5B",
        "seed0": "results/laptop/runs/tepo/seed0/model",
        "mine": "/some/where/else",
    }
