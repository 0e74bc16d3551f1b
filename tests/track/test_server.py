"""MLflow as a mirror: a server that dies under its writers, and models that it can load."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from policygrain.results.layout import RunFolder, StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.study import Study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import Run
from policygrain.track.mirror import mirror
from policygrain.track.mlflow_runs import CONTENT, KEY

from ..support.leftovers import swept
from ..support.made_up import make_up_run
from ..support.small import small_study
from . import postgresql

STUDIES, SEEDS, STEPS = 4, 5, 25
TIMEOUT = 300.0  # seconds


def study_of(number: int, uri: str, **tracking: Any) -> Study:
    return small_study(name=f"study{number}", seeds=list(range(SEEDS)), tracking={"uri": uri, **tracking})


def rows_of(study: int, seed: int) -> list[dict[str, float]]:
    """Metrics of a run, no two numbers equal."""
    first = (study * SEEDS + seed) * STEPS
    numbers = [{f"metric{i}": float(4 * (first + step) + i) for i in range(4)} for step in range(STEPS)]
    return [{"step": step, "total_tokens": step, **row} for step, row in enumerate(numbers)]


def write_run(study: Study, number: int, seed: int, folder: Path) -> RunFolder:
    """The records of one run in the results ``folder`` of its study."""
    timings = [{"step": step, "seconds": 0.5} for step in range(STEPS)]
    fingerprints = Fingerprints(study)
    return make_up_run(fingerprints, StudyFolder(folder), Run("grpo", seed), rows_of(number, seed), timings)


class Server:
    """`mlflow server` on a database, at an address that stays the same when it is killed and started again."""

    def __init__(self, folder: Path, store: str, mark: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri, self.store = f"http://127.0.0.1:{self.port}", store
        self.folder, self.mark, self.process = folder, mark, None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", self.store]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = {**os.environ, **self.mark, "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> None:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            time.sleep(0.2)
        pytest.fail((self.folder / "server.log").read_text()[-3000:])

    def kill(self) -> None:
        """All its processes at once, in the middle of what they do."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def points(self) -> int:
        """How many points of metrics are stored."""
        engine = sqlalchemy.create_engine(self.store, poolclass=sqlalchemy.NullPool)
        with engine.connect() as store:
            return int(store.execute(sqlalchemy.text("SELECT COUNT(*) FROM metrics")).scalar_one())


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        store = f"sqlite:///{tmp_path}/mlflow.db"
        if request.param == "postgresql":
            if (reason := postgresql.missing()) is not None:
                pytest.skip(reason)
            store = stack.enter_context(postgresql.database())
        (folder := tmp_path / "server").mkdir()
        server = Server(folder, store, stack.enter_context(swept(folder)))
        stack.callback(server.kill)
        server.start()
        server.wait()
        yield server


@pytest.mark.slow
def test_twenty_runs_survive_a_server_that_is_killed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, nothing is there twice."""
    import mlflow

    # Only the pauses between two tries are shorter than they would be.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "9")
    studies = [study_of(i, server.uri) for i in range(STUDIES)]
    for i, study in enumerate(studies):
        for seed in range(SEEDS):
            write_run(study, i, seed, tmp_path / study.name)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=mirror, args=(StudyResults(tmp_path / s.name, s),)) for s in studies]
    for writer in writers:
        writer.start()
    try:
        whole = STUDIES * SEEDS * STEPS * 6
        end = time.monotonic() + TIMEOUT
        while server.points() < 0.4 * whole:
            assert time.monotonic() < end and any(writer.is_alive() for writer in writers)
            time.sleep(0.02)
        server.kill()
        assert server.points() < whole
        server.start()
        for writer in writers:
            writer.join(TIMEOUT)
        assert [writer.exitcode for writer in writers] == [0] * STUDIES
    finally:
        for writer in writers:
            writer.kill()

    # A run whose creation was not answered in time, and the same records once more.
    client = mlflow.MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("study0")
    assert experiment is not None
    client.create_run(experiment.experiment_id, tags={KEY: "study0/grpo/0", CONTENT: "key-grpo-0"})
    mirror(StudyResults(tmp_path / "study0", studies[0]))
    server.kill()

    store = mlflow.MlflowClient(server.store)
    for i, study in enumerate(studies):
        experiment = store.get_experiment_by_name(study.name)
        assert experiment is not None
        runs = store.search_runs([experiment.experiment_id])
        by_key = {run.data.tags[KEY]: run for run in runs}
        expected = {f"{study.name}/{end}" for end in ("grpo", "report", *(f"grpo/{seed}" for seed in range(SEEDS)))}
        assert set(by_key) == expected and len(runs) == len(expected)
        for seed in range(SEEDS):
            run = by_key[f"{study.name}/grpo/{seed}"].info
            assert run.status == "FINISHED"
            for metric in (f"metric{j}" for j in range(4)):
                history = [(p.step, p.value) for p in store.get_metric_history(run.run_id, metric)]
                assert history == [(row["step"], row[metric]) for row in rows_of(i, seed)]
            kept = server.folder / "artifacts" / experiment.experiment_id / run.run_id / "artifacts" / "metrics.jsonl"
            assert kept.read_text() == (tmp_path / study.name / f"runs/grpo/seed{seed}/metrics.jsonl").read_text()
