"""A study's problems: registered sets, files and synthetic families, written with their contamination."""

import json

import pytest

from policygrain.data.problem import read_problems
from policygrain.data.registry import SETS
from policygrain.data.sources import check_sources, contaminated, prepare
from policygrain.errors import UserError
from policygrain.paths import DataFolder

from ..support.files import write_lines
from ..support.problem_sets import study_with
from ..support.small import SMALL, small_study


def test_a_missing_or_wrong_set_stops_a_study_before_anything_is_spent(tmp_path):
    benchmarks: list[dict[str, object]] = [{"name": "m", "source": "math500"}]
    with pytest.raises(
        UserError, match=rf"evaluation\.benchmarks\[0\]\.source: .*policygrain data fetch math500 --root {tmp_path}"
    ):
        check_sources(study_with(["count"], benchmarks, tmp_path))
    (tmp_path / "math500.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"1 problems instead of 500.*data fetch math500"):
        check_sources(study_with(["count"], benchmarks, tmp_path))
    with pytest.raises(UserError, match=r"data\.train\[0\]: 'gsm8k_trian'.*Did you mean 'gsm8k_train'"):
        check_sources(study_with(["gsm8k_trian"], [{"name": "count", "source": "count"}], tmp_path))
    study = study_with(["count", "no.jsonl"], [{"name": "count", "source": "count"}], tmp_path)
    with pytest.raises(UserError, match=r"data\.train\[1\]: \S*no\.jsonl: no such dataset file"):
        prepare(study, DataFolder(tmp_path / "data"))
    assert [path.name for path in tmp_path.iterdir()] == ["math500.jsonl"], "nothing was written"


def test_sources_are_looked_for_in_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("POLICYGRAIN_DATA", str(tmp_path))
    study = small_study(data={"train": ["own.jsonl"]}, model={"warm_start": {"steps": 0}})
    with pytest.raises(UserError, match=rf"data\.train\[0\]: {tmp_path}/own\.jsonl: no such dataset file"):
        check_sources(study)
    (tmp_path / "own.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    check_sources(study)


def test_registered_sets_in_a_study(benchmarks_folder, tmp_path):
    names = ["minerva", "olympiadbench", "amc23", "omni_math_rule"]
    benchmarks: list[dict[str, object]] = [{"name": name, "source": name} for name in names]
    study = study_with(
        ["gsm8k_train"], [*benchmarks, {"name": "few", "source": "math500", "size": 7}], benchmarks_folder
    )
    prepare(study, DataFolder(tmp_path))
    prepared = {name: read_problems(tmp_path / "benchmarks" / f"{name}.jsonl") for name in [*names, "few"]}
    assert {name: len(problems) for name, problems in prepared.items()} == {
        **{name: SETS[name].count for name in names},
        "few": 7,
    }
    assert all(p.options.relative_tolerance == 0.01 and not p.options.list_answer for p in prepared["minerva"])
    assert sum(p.options.list_answer for p in prepared["olympiadbench"]) == 94
    assert list(filter(None, (p.options.absolute_tolerance for p in prepared["olympiadbench"]))) == [0.1]
    assert len(read_problems(tmp_path / "train.jsonl")) == SMALL["data"]["train_size"]
    assert set(json.loads((tmp_path / "contamination.json").read_text())["overlaps"]) == {*names, "few"}


def test_synthetic_splits_are_not_compared(tmp_path):
    """They share no question by construction, but many of their words."""
    prepare(small_study(), DataFolder(tmp_path))
    assert json.loads((tmp_path / "contamination.json").read_text())["overlaps"] == {"count": []}
    assert contaminated(DataFolder(tmp_path), "count") == set()


def test_contamination_of_files_is_written_with_the_data(tmp_path):
    texts = [f"How many ways are there to place {i} rooks on a board of side {i * i} apart?" for i in range(40)]
    write_lines(tmp_path / "train.jsonl", [{"id": "same", "problem": text, "answer": "1"} for text in texts])
    new = "Name the smallest prime that has seven digits, all of them odd."
    asked = {"seen": texts[3].upper(), "new": new}
    write_lines(tmp_path / "test.jsonl", [{"id": i, "problem": text, "answer": "1"} for i, text in asked.items()])
    study = study_with(["train.jsonl"], [{"name": "test", "source": "test.jsonl"}], tmp_path)
    prepare(study, DataFolder(tmp_path / "data"))
    assert contaminated(DataFolder(tmp_path / "data"), "test") == {"seen"}
