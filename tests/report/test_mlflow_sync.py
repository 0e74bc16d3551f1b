"""Runs in MLflow: every step once, whatever happens to the trainer, the follower or the server."""

import fcntl
import io
import json
import os
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import Stopped, UserError
from policygrain.paths import RunFolder, StudyFolder
from policygrain.records import RunStatus, write_record
from policygrain.report.mlflow_store import connect, serve, tracking_uri
from policygrain.report.mlflow_sync import CONTENT, KEY, PAUSE, Follower, mirror
from policygrain.results import StudyResults, is_training, run_status, run_summary
from policygrain.study import load_study
from policygrain.study.runs import Run
from policygrain.train.records import complete_status, recorded_status

from ..support.files import write_lines
from ..support.made_up import make_up, make_up_run
from ..support.mlflow_store import Store
from ..support.small import small_study

STEPS = 6
STARTED = 1_700_000_000.0


# ---- a run while it is trained --------------------------------------------------------------------------------------


class Live:
    """A study of one run, of which two steps are done, and what MLflow has of it."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.study = small_study(name="live", seeds=[0], tracking={"uri": self.uri})
        self.folder = StudyFolder(folder / "live")
        rows = [self._row(step) for step in range(STEPS + 1)]
        self.run = make_up_run(self.study, self.folder, Run("grpo", 0), rows, [])
        self.run.summary.rename(self.run.path / "summary of later")
        self.write(2)
        self.say("RUNNING")

    def _row(self, step: int) -> dict[str, Any]:
        return {"step": step, "total_tokens": 10 * step, "sampled_accuracy": step / 10}

    def write(self, steps: int, repeated_from: int = STEPS, timings: int | None = None) -> None:
        """The run's files after so many steps; those from ``repeated_from`` on were made by a second attempt."""
        write_lines(self.run.metrics, [self._row(step) for step in range(steps)])
        again = [int(step >= repeated_from) for step in range(steps if timings is None else timings)]
        rows = [{"step": s, "seconds/total": 1.0 + a, "time": STARTED + 10 * s + 1000 * a} for s, a in enumerate(again)]
        write_lines(self.run.timings, rows)

    def say(self, status: Any, key: str = "key-grpo-0", **more: Any) -> None:
        write_record(self.run.status, RunStatus(key=key, status=status, started=STARTED, attempts=1, **more))

    def end(self) -> None:
        self.write(STEPS, repeated_from=1)
        with self.run.metrics.open("a") as file:
            file.write(json.dumps(self._row(STEPS)) + "\n")
        (self.run.path / "summary of later").rename(self.run.summary)
        self.say("FINISHED", ended=STARTED + 99)

    @property
    def results(self) -> StudyResults:
        return StudyResults(self.folder.path, self.study)

    @property
    def seen(self) -> Any:
        return Store(self.uri, "live").runs["grpo seed 0"]

    def curve(self, metric: str = "sampled_accuracy") -> list[tuple[int, float]]:
        return Store(self.uri, "live").curve("grpo seed 0", metric)


@pytest.fixture
def live(empty_store, tmp_path):
    shutil.copy(empty_store, tmp_path)
    return Live(tmp_path)


def accuracies(steps: int) -> list[tuple[int, float]]:
    return [(step, step / 10) for step in range(steps)]


def test_steps_appear_while_the_run_is_trained_and_the_mirror_completes_the_same_run(live):
    follower = Follower(live.results)
    follower.look()
    first, store = live.seen, Store(live.uri, "live")
    assert first.info.status == "RUNNING" and first.info.start_time == int(1000 * STARTED)
    points = store.client.get_metric_history(first.info.run_id, "sampled_accuracy")
    assert [point.timestamp for point in points] == [int(1000 * (STARTED + 10 * s)) for s in range(2)]
    assert live.curve() == accuracies(2)

    # A line that is being written, and a step whose timings are not there yet, wait.
    live.write(4, timings=3)
    with live.run.timings.open("a") as file:
        file.write('{"step": 3, "sec')
    follower.look()
    assert live.curve() == accuracies(3)

    # The trainer is killed and resumes at step 1: it repeats steps, with equal metrics and other timings.
    live.write(2, repeated_from=1)
    follower.look()
    live.write(STEPS, repeated_from=1)
    Follower(live.results).look()  # another follower, as of a workflow that was started again
    expected = [(s, 1.0 if s < 3 else 2.0) for s in range(STEPS)]
    assert live.curve("seconds/total") == expected

    live.end()
    for _ in range(2):
        mirror(live.results)
        assert live.seen.info.run_id == first.info.run_id and live.seen.info.status == "FINISHED"
        assert live.seen.info.end_time == int(1000 * (STARTED + 99))
        assert live.curve() == accuracies(STEPS + 1) and live.curve("seconds/total") == expected


@pytest.mark.parametrize(("status", "reason"), [("FAILED", "the gradient is not finite"), ("KILLED", "SIGTERM")])
def test_how_a_run_ended_is_shown_and_a_resumed_run_continues(status, reason, live):
    follower = Follower(live.results)
    follower.look()
    live.say(status, ended=STARTED + 30, reason=reason)
    follower.look()
    found = live.seen
    assert (found.info.status, found.data.tags["reason"]) == (status, reason)
    assert found.info.end_time == int(1000 * (STARTED + 30))
    live.write(3)
    live.say("RUNNING")
    follower.look()
    assert live.seen.info.run_id == found.info.run_id and live.seen.info.status == "RUNNING"
    assert live.curve() == accuracies(3)


def test_a_run_whose_process_was_killed_is_marked_when_the_workflow_ends(live):
    follower = Follower(live.results)
    follower.look()
    with live.run.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_training(live.run)
        follower.look(last=True)  # a job that goes on without the workflow
        assert live.seen.info.status == "RUNNING"
    follower.look(last=True)
    assert live.seen.info.status == "KILLED"


def test_a_run_with_other_settings_gets_a_run_of_its_own(live):
    follower = Follower(live.results)
    follower.look()
    before = live.seen
    live.run.config.write_text(live.run.config.read_text().replace("key-grpo-0", "another"))
    follower.look()  # the status is still that of the run before
    live.say("RUNNING", key="another")
    follower.look()
    assert live.seen.info.run_id != before.info.run_id


def test_a_server_that_hangs_only_delays(live, monkeypatch, capsys):
    """It takes connections and answers none."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = small_study(name="live", seeds=[0], tracking={"uri": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        follower = Follower(StudyResults(live.folder.path, hanging))
        for tried in range(1, 4):
            begin = time.monotonic()
            follower.look()
            assert time.monotonic() - begin < 10
            assert follower.pause == PAUSE * 2**tried
    assert capsys.readouterr().err.count("next try in") == 3
    live.write(5)
    follower.results.study = live.study
    follower.look()
    assert live.curve() == accuracies(5) and follower.pause == PAUSE


def test_the_status_says_what_happened(tmp_path):
    run = RunFolder(tmp_path)
    for error, status in ((UserError("bad"), "FAILED"), (Stopped("time"), "KILLED"), (KeyboardInterrupt(), "KILLED")):
        with pytest.raises(type(error)), recorded_status(run, "key"):
            assert run_status(run).status == "RUNNING"
            raise error
        assert run_status(run).status == status and run_status(run).reason in ("bad", "time", "KeyboardInterrupt")
    with recorded_status(run, "key"):
        assert (run_status(run).attempts, run_status(run).reason) == (4, "")
    first = run_status(run)
    assert first.status == "FINISHED" and first.ended is not None and first.ended > first.started
    with recorded_status(run, "another"):
        assert run_status(run).attempts == 1
    # Killed between the summary and the status.
    write_record(run.status, run_status(run).model_copy(update={"status": "RUNNING"}))
    run.summary.touch()
    complete_status(run)
    assert run_status(run).status == "FINISHED"


# ---- a finished study -----------------------------------------------------------------------------------------------


@pytest.fixture
def smoke(empty_store, root, tmp_path, monkeypatch):
    """The made-up results of a finished study, of its headline alone: two methods with two seeds."""
    shutil.copy(empty_store, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = load_study(root / "tests/support/every_stage.yaml")
    headline = {"experiments": {"headline": study.experiments["headline"]}}
    return StudyResults(make_up(study.model_copy(update=headline), tmp_path / "smoke", {}))


def store_of(results: StudyResults) -> Store:
    return Store(f"sqlite:///{results.folder.path.parent}/mlflow.db", "smoke")


# In the made-up records seed s ends with 0.5 + 0.1 s.
VALIDATION = [(0, 0.0), (2, pytest.approx(1 / 3)), (3, 0.5)]


def test_a_run_that_was_trained_again_replaces_the_old_one(smoke, tmp_path):
    late, again = smoke.folder.run("tepo", 1), smoke.folder.run("grpo", 0)
    late.path.rename(tmp_path / "not yet")
    tracked = mirror(smoke)
    assert set(tracked.runs) == {run.name for run in smoke.matrix.runs} - {"tepo/seed1"}
    assert tracked.uri == f"sqlite:///{tmp_path}/mlflow.db"
    store = store_of(smoke)
    assert "tepo seed 1" not in store.runs and store.curve("tepo seed 0", "validation_accuracy") == VALIDATION
    untouched = store.runs["tepo seed 0"].info.run_id

    # The second seed comes in, a run is trained again with another result, and the creation of one was answered late.
    (tmp_path / "not yet").rename(late.path)
    for path in (again.config, again.summary):
        path.write_text(path.read_text().replace(run_summary(again).key, "of other settings", 1))
    again.metrics.write_text(again.metrics.read_text().replace("0.5}", "0.9}").replace('0.5, "total', '0.9, "total'))
    tags = {KEY: "smoke/tepo/0", CONTENT: run_summary(smoke.folder.run("tepo", 0)).key}
    store.client.create_run(store.experiment, tags=tags)
    mirror(StudyResults(smoke.folder.path))
    assert store.runs["tepo seed 0"].info.run_id == untouched and "tepo seed 1" in store.runs
    assert store.curve("grpo seed 0", "validation_accuracy") == [*VALIDATION[:2], (3, 0.9)]
    assert len(store.runs) == len(smoke.matrix.runs) + 1
    # MLflow draws bars for metrics whose only step is 0.
    assert [step for step, _ in store.curve("tepo seed 0", "test/average")] == [0]


REQUESTS = ("create_run", "log_batch", "set_tag", "log_artifact", "log_artifacts", "log_table", "set_terminated")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_a_mirror_that_is_killed_after_any_request_is_completed_by_the_next(smoke, monkeypatch):
    """Killed after each of its requests in turn, by restarting until none is left."""
    import mlflow

    killed_after: set[tuple[str, ...]] = set()

    def killed_once(name: str) -> Any:
        request = getattr(mlflow.MlflowClient, name)

        def carried_out(client: Any, *args: Any, **more: Any) -> Any:
            answer = request(client, *args, **more)
            this = (name, *args[: 2 if name == "set_tag" else 1], *sorted(more))
            if this not in killed_after:
                killed_after.add(this)
                raise Killed
            return answer

        return carried_out

    for name in REQUESTS:
        monkeypatch.setattr(mlflow.MlflowClient, name, killed_once(name))
    starts = 1
    while True:
        try:
            mirror(smoke)
            break
        except Killed:
            starts += 1
    assert starts == len(killed_after) + 1 > 20, killed_after
    store = store_of(smoke)
    assert set(store.runs) == {"figures and tables", *(f"{run.arm} seed {run.seed}" for run in smoke.matrix.runs)}
    assert {run.info.status for run in store.runs.values()} == {"FINISHED"}
    assert store.curve("grpo seed 0", "validation_accuracy") == VALIDATION


@pytest.mark.slow
def test_two_calls_on_a_new_store_both_succeed(smoke):
    store = smoke.folder.path.parent / "mlflow.db"
    store.unlink()
    store.with_name(".mlflow.db.creating").write_text("left by a call that was killed")
    with ThreadPoolExecutor() as pool:  # a lock of a file that each opens, as between processes
        calls = [pool.submit(connect, smoke.folder, smoke.study) for _ in range(2)]
    assert [call.result()[1] for call in calls] == [store_of(smoke).experiment] * 2
    assert not store.with_name(".mlflow.db.creating").exists()


def test_the_address_of_the_runs_is_printed_and_mlflow_takes_over(smoke, monkeypatch, capsys):
    """On a port that no other program uses."""
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: begun.append(command))
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setattr("policygrain.report.mlflow_store.urlopen", lambda *_, **__: io.BytesIO(b"?"))
        with pytest.raises(UserError, match=f"--port: {port} is used by another program"):
            serve(smoke.folder, smoke.study, port)
        monkeypatch.setattr("policygrain.report.mlflow_store.urlopen", lambda *_, **__: io.BytesIO(b"OK"))
        serve(smoke.folder, smoke.study, port)
    assert "MLflow is running already: http://127.0.0.1:" in capsys.readouterr().out and not begun
    serve(smoke.folder, smoke.study, port)
    assert f"/#/experiments/{store_of(smoke).experiment}/runs?" in capsys.readouterr().out
    assert begun[0][2:4] == ["mlflow", "server"] and tracking_uri(smoke.folder, smoke.study) in begun[0]
