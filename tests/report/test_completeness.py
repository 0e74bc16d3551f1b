"""Whether a study is finished, what is named of damaged results, and that credentials appear nowhere."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.paths import StudyFolder
from policygrain.records import TrackingRecord, write_record
from policygrain.report.overview import check_complete
from policygrain.report.page import EACH, samples, write_report
from policygrain.results import StudyResults, evaluated_samples
from policygrain.study import load_study
from policygrain.text import redacted

from ..support.made_up import make_up_tracking
from . import CASES


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
        ("metrics.jsonl", None, "is missing.* remove its folder"),
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
        model = "start/seed0" if begins == "start" else study.matrix.evaluated[0].name
        (part,) = samples(study)
        assert f" of {model} to each benchmark" in part.note
        shown = [dict(zip(part.header, row, strict=True)) for row in part.rows]
        records = study.model_evaluations[model].records
        written = [evaluated_samples(study.folder.evaluation(model), record).head(EACH) for record in records]
        assert [row["response"] for row in shown] == [text for rows in written for text in rows["response"]]
        for path in copied.glob(f"{begins}/**/records.json"):
            path.unlink()
        study = StudyResults(copied)
    assert not samples(study)


def test_samples_that_are_damaged_are_named(copied):
    for path in copied.glob("runs/**/samples.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"samples\.parquet: cannot be read as evaluated samples .*Evaluate the model"):
        samples(StudyResults(copied))


SECRET = "s3cr3t-of-mine"
NOWHERE = f"http://someone:{SECRET}@127.0.0.1:9"  # nothing listens on this port


@pytest.mark.parametrize(("uri", "shown"), CASES["addresses"].items())
def test_addresses_are_shown_without_credentials(uri, shown):
    assert redacted(uri) == shown


def test_a_server_that_is_not_reached_is_named_and_nothing_of_it_is_printed_or_recorded(copied):
    """Neither in the message nor in a traceback nor in anything that MLflow logs."""
    StudyFolder(copied).tracking.unlink(missing_ok=True)
    command = [sys.executable, "-m", "policygrain.cli", "track", "--config", str(copied / "study.yaml")]
    environment = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}
    environment |= {**os.environ, "MLFLOW_TRACKING_URI": NOWHERE}
    done = subprocess.run(
        [*command, "--results", str(copied)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "tracking.uri: MLflow at http://127.0.0.1:9 does not answer" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert not StudyFolder(copied).tracking.exists()


def test_records_and_report_hold_no_credentials(copied, empty_store, root, monkeypatch):
    """The store is a SQLite file here, whose address has credentials that SQLite ignores."""
    folder, store = StudyFolder(copied), shutil.copy(empty_store, copied.parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}?password={SECRET}")
    assert main(["track", "--config", str(folder.study), "--results", str(copied)]) == 0
    assert SECRET not in folder.tracking.read_text()
    write_record(folder.tracking, TrackingRecord(uri=redacted(NOWHERE), experiment="1", runs={"tepo": "abc"}))
    write_report(StudyResults(copied), root / "workflow" / "report", folder.report)
    assert SECRET not in folder.report.read_text()


def test_a_study_file_with_credentials_is_refused_without_printing_them(copied):
    """It is copied into results."""
    path = StudyFolder(copied).study
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"tracking": {"uri": NOWHERE}}))
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as raised:
        load_study(path)
    assert SECRET not in str(raised.value)
