"""Creation of MLflow's SQLite store: by one process at a time, and never half."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.results.reader import StudyResults
from policygrain.study import load_study
from policygrain.track.mirror import mirror

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return make_up(load_study(ROOT / "studies" / "smoke.yaml"), tmp_path / "smoke", {})


@pytest.mark.slow
def test_two_calls_on_a_new_store_both_succeed(results: Path) -> None:
    command = [sys.executable, "-m", "policygrain.cli", "track", "--config", str(results / "study.yaml")]
    command += ["--results", str(results)]
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    calls = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [call.communicate(timeout=600)[1] for call in calls]
    assert [call.returncode for call in calls] == [0, 0], errors
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{results.parent}/mlflow.db")
    assert client.get_experiment_by_name("smoke") is not None


def test_a_store_whose_creation_was_interrupted_is_said(results: Path) -> None:
    """As by a process that creates the tables in place: some of them, without the version of the last migration."""
    store = results.parent / "mlflow.db"
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE experiments (experiment_id INTEGER)")
        database.commit()
    with pytest.raises(UserError, match=r"mlflow\.db: an MLflow store whose creation was interrupted\. Remove it"):
        mirror(StudyResults(results))
    store.unlink()
    assert mirror(StudyResults(results)).runs


def test_what_an_interrupted_creation_leaves_is_replaced(results: Path) -> None:
    (results.parent / ".mlflow.db.creating").write_text("half")
    assert mirror(StudyResults(results)).runs
    assert not (results.parent / ".mlflow.db.creating").exists()
