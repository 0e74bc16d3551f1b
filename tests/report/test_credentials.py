"""Credentials in the address of MLflow appear nowhere but in requests to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures import TABLES
from policygrain.figures.catalogue import draw
from policygrain.paths import StudyFolder
from policygrain.records import TrackingRecord, write_record
from policygrain.report.mlflow_sync import mirror
from policygrain.report.page import write_report
from policygrain.results import StudyResults
from policygrain.study import load_study
from policygrain.text import redacted

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t-of-mine"
NOWHERE = f"http://someone:{SECRET}@127.0.0.1:9"  # nothing listens on this port


@pytest.fixture
def results(tmp_path: Path) -> Path:
    study = load_study(ROOT / "tests/support/every_stage.yaml").model_copy(update={"figures": ["dynamics"]})
    return make_up(study, tmp_path / "smoke", {})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"http://someone:{SECRET}@host:5000/path", "http://host:5000/path"),
        (f"https://{SECRET}@host", "https://host"),
        (f"postgresql+psycopg2://u:{SECRET}@host/db", "postgresql+psycopg2://host/db"),
        (f"http://u:{SECRET}@and@more@host/x", "http://host/x"),
        (f"http://host/?access_token={SECRET}", "http://host/"),
        (f"postgresql://host/db?user=u&password={SECRET}#x", "postgresql://host/db"),
        ("http://host/a@b", "http://host/a@b"),
        ("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db"),
        ("databricks", "databricks"),
    ],
)
def test_addresses_are_shown_without_credentials(uri: str, shown: str) -> None:
    assert redacted(uri) == shown


def test_a_server_that_is_not_reached_is_named_without_credentials(results: Path, impatient: None) -> None:
    study = StudyResults(results).study
    study = study.model_copy(update={"tracking": study.tracking.model_copy(update={"uri": NOWHERE})})
    with pytest.raises(UserError, match=r"tracking\.uri: MLflow at http://127\.0\.0\.1:9 does not answer") as raised:
        mirror(StudyResults(results, study))
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__ and raised.value.__cause__ is None


def test_the_command_prints_no_credentials(results: Path, impatient: None, tmp_path: Path) -> None:
    """Neither in its message nor in anything that MLflow logs; and it writes no record."""
    command = [sys.executable, "-m", "policygrain.cli", "track", "--config", str(results / "study.yaml")]
    command += ["--results", str(results)]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": NOWHERE}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2 and "does not answer" in done.stderr and "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert not StudyFolder(results).tracking.exists()


def test_records_and_report_hold_no_credentials(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is a SQLite file here, whose address has credentials that SQLite ignores."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db?password={SECRET}")
    assert main(["track", "--config", str(results / "study.yaml"), "--results", str(results)]) == 0
    record = StudyFolder(results).tracking
    assert SECRET not in record.read_text()
    write_record(record, TrackingRecord(uri=redacted(NOWHERE), experiment="1", runs={"tepo": "abc"}))
    for name in ("dynamics", *TABLES):
        draw(name, StudyResults(results))
    write_report(StudyResults(results), ROOT / "workflow" / "report", StudyFolder(results).report)
    assert SECRET not in StudyFolder(results).report.read_text()


def test_a_study_file_with_credentials_is_refused_without_printing_them(results: Path) -> None:
    """It is copied into results."""
    path = StudyFolder(results).study
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"tracking": {"uri": NOWHERE}}))
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as raised:
        load_study(path)
    assert SECRET not in str(raised.value)
