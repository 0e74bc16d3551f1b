"""The first evaluated responses of a study."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.report.samples import EACH, SHOWN, first_rows
from policygrain.results import StudyResults, samples


def test_the_first_responses_are_of_a_trained_model_or_else_of_an_initial_one(results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "study"))
    study = StudyResults(folder)
    for begins in ("runs", "start"):
        found = first_rows(study)
        model = "start/seed0" if begins == "start" else study.matrix.evaluated[0].name
        assert set(found["model"]) == {model} and list(found.columns) == ["model", *SHOWN]
        assert found["benchmark"].value_counts().to_dict() == dict.fromkeys(study.benchmarks, EACH)
        written = samples(study.folder.evaluation(model).samples)
        for name, rows in found.groupby("benchmark"):
            expected = written[written["benchmark"] == name].head(EACH)
            assert rows["response"].tolist() == expected["response"].tolist()
        for path in folder.glob(f"{begins}/**/records.json"):
            path.unlink()
        study = StudyResults(folder)
    assert first_rows(study).empty


def test_samples_that_are_damaged_are_named(results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "study"))
    for path in folder.glob("runs/**/samples.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"samples\.parquet: cannot be read as evaluated samples .*Evaluate the model"):
        first_rows(StudyResults(folder))
