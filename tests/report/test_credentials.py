"""Credentials in the address of MLflow appear nowhere but in requests to it."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.paths import StudyFolder
from policygrain.records import TrackingRecord, write_record
from policygrain.report.page import write_report
from policygrain.results import StudyResults
from policygrain.study import load_study
from policygrain.text import redacted

from . import CASES

SECRET = "s3cr3t-of-mine"
NOWHERE = f"http://someone:{SECRET}@127.0.0.1:9"  # nothing listens on this port


@pytest.mark.parametrize(("uri", "shown"), CASES["addresses"].items())
def test_addresses_are_shown_without_credentials(uri, shown):
    assert redacted(uri) == shown


def test_a_server_that_is_not_reached_is_named_and_nothing_of_it_is_printed_or_recorded(copied):
    """Neither in the message nor in a traceback nor in anything that MLflow logs."""
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
