"""Whether a study is finished: what is gone, cut off or damaged is named."""

import re

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.report.completeness import check_complete
from policygrain.report.samples import EACH, SHOWN, first_rows
from policygrain.results import StudyResults, samples

from ..support.made_up import make_up_tracking


@pytest.fixture
def finished(copied):
    """The drawn study with a report."""
    (copied / "report.html").touch()
    make_up_tracking(copied, "sqlite:///mlflow.db")
    check_complete(StudyResults(copied))
    return copied


PARTS = ["runs/*/*/summary.json", "runs/*/*/evaluation/*", "start/*/evaluation/*"]


@pytest.mark.parametrize("pattern", [*PARTS, "figures/*", "tables/*", "report.html", "mlflow.json"])
def test_any_result_that_is_gone_is_noticed(pattern, finished):
    for path in finished.glob(pattern):
        content = path.read_bytes()
        path.unlink()
        name = re.escape(str(path.relative_to(finished)))
        with pytest.raises(UserError, match=rf"not finished: 1 of its results are missing, such as {name}"):
            check_complete(StudyResults(finished))
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "kept", "says"),
    [
        ("metrics.jsonl", 1, r"1 steps of \d+.* remove its folder"),
        ("metrics.jsonl", None, "cannot be read.* remove its folder"),
        ("summary.json", 2, "not JSON"),
        ("evaluation/records.json", 2, "not JSON"),
    ],
)
def test_a_record_that_is_damaged_is_named(name, kept, says, finished, capsys):
    """Gone, or cut off after its first lines."""
    path = finished / "runs" / "tepo" / "seed1" / name
    lines = path.read_text().splitlines(keepends=True)
    path.unlink()
    if kept is not None:
        path.write_text("".join(lines[:kept]))
    command = ["report", "--config", str(finished / "study.yaml"), "--results", str(finished), "--screen"]
    assert main(command) == 2
    assert re.search(rf"tepo/seed1/{name}: .*{says}", capsys.readouterr().err)


def test_the_first_responses_are_of_a_trained_model_or_else_of_an_initial_one(copied):
    study = StudyResults(copied)
    for begins in ("runs", "start"):
        found = first_rows(study)
        model = "start/seed0" if begins == "start" else study.matrix.evaluated[0].name
        assert set(found["model"]) == {model} and list(found.columns) == ["model", *SHOWN]
        assert found["benchmark"].value_counts().to_dict() == dict.fromkeys(study.benchmarks, EACH)
        written = samples(study.folder.evaluation(model).samples)
        for name, rows in found.groupby("benchmark"):
            expected = written[written["benchmark"] == name].head(EACH)
            assert rows["response"].tolist() == expected["response"].tolist()
        for path in copied.glob(f"{begins}/**/records.json"):
            path.unlink()
        study = StudyResults(copied)
    assert first_rows(study).empty


def test_samples_that_are_damaged_are_named(copied):
    for path in copied.glob("runs/**/samples.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"samples\.parquet: cannot be read as evaluated samples .*Evaluate the model"):
        first_rows(StudyResults(copied))
