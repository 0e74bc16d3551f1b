"""Runs in MLflow: every step once, whatever happens to the trainer, the follower or the server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import Stopped, UserError
from policygrain.job_state import is_training, run_status
from policygrain.paths import RunFolder, StudyFolder
from policygrain.records import RunStatus, write_record
from policygrain.report.mlflow_store import serve, tracking_uri
from policygrain.report.mlflow_sync import CONTENT, KEY, PAUSE, Follower, mirror
from policygrain.results import StudyResults, run_summary
from policygrain.study import Study, load_study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import Run
from policygrain.train.records import complete_status, recorded_status

from ..support.made_up import make_up, make_up_run
from ..support.small import small_study, write_study

STEPS = 6
METRIC = "sampled_accuracy"
STARTED = 1_700_000_000.0


def row(step: int) -> dict[str, Any]:
    return {"step": step, "total_tokens": 10 * step, "sampled_accuracy": step / 10}


def timing(step: int, attempt: int = 0) -> dict[str, Any]:
    return {"step": step, "seconds/total": 1.0 + attempt, "time": STARTED + 10 * step + 1000 * attempt}


def write_rows(run: RunFolder, steps: int, repeated_from: int = STEPS) -> None:
    """The files of a run after so many steps; those from ``repeated_from`` on were made by a second attempt."""
    run.metrics.write_text("".join(json.dumps(row(s)) + "\n" for s in range(steps)))
    run.timings.write_text("".join(json.dumps(timing(s, int(s >= repeated_from))) + "\n" for s in range(steps)))


def write_status(run: RunFolder, key: str, status: Any = "RUNNING", **more: Any) -> None:
    write_record(run.status, RunStatus(key=key, status=status, started=STARTED, attempts=1, **more))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make the tables of a store."""
    import mlflow

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def study(empty_store: Path, tmp_path: Path) -> Study:
    shutil.copy(empty_store, tmp_path)
    return small_study(name="live", seeds=[0], tracking={"uri": f"sqlite:///{tmp_path}/mlflow.db"})


@pytest.fixture
def run(study: Study, tmp_path: Path) -> RunFolder:
    """A run of which two steps are done."""
    folder = StudyFolder(tmp_path / "live")
    made = make_up_run(Fingerprints(study), folder, Run("grpo", 0), [row(s) for s in range(STEPS + 1)], [])
    made.summary.rename(made.path / "summary of later")
    write_rows(made, 2)
    write_status(made, "key-grpo-0")
    return made


def in_mlflow(uri: str) -> dict[str, Any]:
    """The runs by name."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("live")
    assert experiment is not None
    runs = [run for run in client.search_runs([experiment.experiment_id]) if "seed" in run.data.tags]
    assert len({r.info.run_name for r in runs}) == len(runs)
    return {r.info.run_name: r for r in runs}


def history(uri: str, metric: str) -> list[tuple[int, float, int]]:
    import mlflow

    (found,) = in_mlflow(uri).values()
    return [
        (p.step, p.value, p.timestamp) for p in mlflow.MlflowClient(uri).get_metric_history(found.info.run_id, metric)
    ]


def test_steps_appear_while_the_run_is_trained_and_the_mirror_completes_the_same_run(
    study: Study, run: RunFolder, tmp_path: Path
) -> None:
    uri = str(study.tracking.uri)
    follower = Follower(StudyResults(tmp_path / "live", study))
    follower.look()
    (first,) = in_mlflow(uri).values()
    assert first.info.status == "RUNNING" and first.info.start_time == int(1000 * STARTED)
    assert history(uri, "sampled_accuracy") == [(s, s / 10, int(1000 * (STARTED + 10 * s))) for s in range(2)]

    # A line that is being written, and a step whose timings are not there yet, wait.
    write_rows(run, 4)
    run.timings.write_text("".join(json.dumps(timing(s)) + "\n" for s in range(3)) + '{"step": 3, "sec')
    follower.look()
    assert [step for step, _, _ in history(uri, "sampled_accuracy")] == [0, 1, 2]

    # The trainer is killed and resumes at step 1: it repeats steps, with equal metrics and other timings.
    write_rows(run, 2, repeated_from=1)
    follower.look()
    write_rows(run, STEPS, repeated_from=1)
    Follower(StudyResults(tmp_path / "live", study)).look()  # another follower, as of a workflow that was started again
    expected = [(s, 1.0 if s < 3 else 2.0) for s in range(STEPS)]
    assert [(s, v) for s, v, _ in history(uri, "seconds/total")] == expected

    with run.metrics.open("a") as file:
        file.write(json.dumps(row(STEPS)) + "\n")
    (run.path / "summary of later").rename(run.summary)
    write_status(run, "key-grpo-0", "FINISHED", ended=STARTED + 99)
    mirror(StudyResults(tmp_path / "live", study))
    mirror(StudyResults(tmp_path / "live", study))
    (last,) = in_mlflow(uri).values()
    assert last.info.run_id == first.info.run_id and last.info.status == "FINISHED"
    assert last.info.end_time == int(1000 * (STARTED + 99))
    assert [(s, v) for s, v, _ in history(uri, "sampled_accuracy")] == [(s, s / 10) for s in range(STEPS + 1)]
    assert [(s, v) for s, v, _ in history(uri, "seconds/total")] == expected


@pytest.mark.parametrize(("status", "reason"), [("FAILED", "the gradient is not finite"), ("KILLED", "SIGTERM")])
def test_how_a_run_ended_is_shown_and_a_resumed_run_continues(
    status: str, reason: str, study: Study, run: RunFolder, tmp_path: Path
) -> None:
    uri, follower = str(study.tracking.uri), Follower(StudyResults(tmp_path / "live", study))
    follower.look()
    write_status(run, "key-grpo-0", status, ended=STARTED + 30, reason=reason)
    follower.look()
    (found,) = in_mlflow(uri).values()
    assert (found.info.status, found.data.tags["reason"]) == (status, reason)
    assert found.info.end_time == int(1000 * (STARTED + 30))
    write_rows(run, 3)
    write_status(run, "key-grpo-0")
    follower.look()
    (again,) = in_mlflow(uri).values()
    assert again.info.run_id == found.info.run_id and again.info.status == "RUNNING"
    assert len(history(uri, "sampled_accuracy")) == 3


def test_a_run_whose_process_was_killed_is_marked_when_the_workflow_ends(
    study: Study, run: RunFolder, tmp_path: Path
) -> None:
    follower = Follower(StudyResults(tmp_path / "live", study))
    follower.look()
    with run.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_training(run)
        follower.look(last=True)  # a job that goes on without the workflow
        assert [r.info.status for r in in_mlflow(str(study.tracking.uri)).values()] == ["RUNNING"]
    follower.look(last=True)
    assert [r.info.status for r in in_mlflow(str(study.tracking.uri)).values()] == ["KILLED"]


def test_a_run_with_other_settings_gets_a_run_of_its_own(study: Study, run: RunFolder, tmp_path: Path) -> None:
    follower = Follower(StudyResults(tmp_path / "live", study))
    follower.look()
    (before,) = in_mlflow(str(study.tracking.uri)).values()
    run.config.write_text(run.config.read_text().replace("key-grpo-0", "another"))
    follower.look()  # the status is still that of the run before
    write_status(run, "another")
    follower.look()
    (after,) = in_mlflow(str(study.tracking.uri)).values()
    assert after.info.run_id != before.info.run_id


def test_a_server_that_hangs_only_delays(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes connections and answers none."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = small_study(name="live", seeds=[0], tracking={"uri": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        follower = Follower(StudyResults(tmp_path / "live", hanging))
        for tried in range(1, 4):
            begin = time.monotonic()
            follower.look()
            assert time.monotonic() - begin < 10
            assert follower.pause == PAUSE * 2**tried
    assert capsys.readouterr().err.count("next try in") == 3
    write_rows(run, 5)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    follower.results.study = small_study(name="live", seeds=[0], tracking={"uri": store})
    follower.look()
    assert len(history(store, "sampled_accuracy")) == 5 and follower.pause == PAUSE


@pytest.fixture
def smoke(empty_store: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyResults:
    """The made-up results of a finished study, of its headline alone: two methods with two seeds."""
    shutil.copy(empty_store, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = load_study(root / "tests/support/every_stage.yaml")
    headline = {"experiments": {"headline": study.experiments["headline"]}}
    return StudyResults(make_up(study.model_copy(update=headline), tmp_path / "smoke", {}))


def test_a_run_that_was_trained_again_replaces_the_old_one(smoke: StudyResults, tmp_path: Path) -> None:
    import mlflow

    results = smoke.folder.path
    late = smoke.folder.run("tepo", 1)
    late.path.rename(tmp_path / "not yet")
    tracked = mirror(smoke)
    assert set(tracked.runs) == {run.name for run in smoke.matrix.runs} - {"tepo/seed1"}
    assert tracked.uri == f"sqlite:///{tmp_path}/mlflow.db"
    store = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    found = store.get_experiment_by_name("smoke")
    assert found is not None

    def runs() -> dict[str, mlflow.entities.Run]:
        return {r.info.run_name: r for r in store.search_runs([found.experiment_id])}

    def curve(name: str, metric: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in store.get_metric_history(runs()[name].info.run_id, metric)]

    # In the made-up records seed s ends with 0.5 + 0.1 s.
    assert "tepo seed 1" not in runs()
    assert curve("tepo seed 0", "validation_accuracy") == [(0, 0.0), (2, 0.5 * 2 / 3), (3, 0.5)]
    untouched = runs()["tepo seed 0"].info.run_id

    # The second seed comes in, a run is trained again with another result, and the creation of one was answered late.
    (tmp_path / "not yet").rename(late.path)
    again = smoke.folder.run("grpo", 0)
    for path in (again.config, again.summary):
        path.write_text(path.read_text().replace(run_summary(again).key, "of other settings", 1))
    again.metrics.write_text(again.metrics.read_text().replace("0.5}", "0.9}").replace('0.5, "total', '0.9, "total'))
    store.create_run(
        found.experiment_id, tags={KEY: "smoke/tepo/0", CONTENT: run_summary(smoke.folder.run("tepo", 0)).key}
    )
    mirror(StudyResults(results))
    assert runs()["tepo seed 0"].info.run_id == untouched and "tepo seed 1" in runs()
    assert curve("grpo seed 0", "validation_accuracy")[1:] == [(2, pytest.approx(1 / 3)), (3, 0.9)]
    names = [r.info.run_name for r in store.search_runs([found.experiment_id])]
    assert len(names) == len(set(names)) == len(smoke.matrix.runs) + 1
    # MLflow draws bars for metrics whose only step is 0.
    (point,) = store.get_metric_history(untouched, "test/average")
    assert point.step == 0


REQUESTS = ("create_run", "log_batch", "set_tag", "log_artifact", "log_artifacts", "log_table", "set_terminated")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_a_mirror_that_is_killed_after_any_request_is_completed_by_the_next(
    smoke: StudyResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    store = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = store.get_experiment_by_name("smoke")
    assert experiment is not None
    runs = {run.info.run_name: run for run in store.search_runs([experiment.experiment_id])}
    assert set(runs) == {"figures and tables", *(f"{run.arm} seed {run.seed}" for run in smoke.matrix.runs)}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    curve = store.get_metric_history(runs["grpo seed 0"].info.run_id, "validation_accuracy")
    assert [(m.step, m.value) for m in curve] == [(0, 0.0), (2, pytest.approx(1 / 3)), (3, 0.5)]


@pytest.mark.slow
def test_two_calls_on_a_new_store_both_succeed(smoke: StudyResults) -> None:
    store = smoke.folder.path.parent / "mlflow.db"
    store.unlink()
    store.with_name(".mlflow.db.creating").write_text("left by a call that was killed")
    command = [sys.executable, "-m", "policygrain.cli", "track", "--config", str(smoke.folder.study)]
    command += ["--results", str(smoke.folder.path)]
    calls = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [call.communicate(timeout=600)[1] for call in calls]
    assert [call.returncode for call in calls] == [0, 0], errors
    import mlflow

    assert mlflow.MlflowClient(f"sqlite:///{store}").get_experiment_by_name("smoke") is not None
    assert not store.with_name(".mlflow.db.creating").exists()


def test_the_address_of_the_runs_is_printed_and_mlflow_takes_over(
    smoke: StudyResults, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: begun.append(command))
    experiment = mirror(smoke).experiment
    serve(smoke.folder, smoke.study, 5001)
    assert f"http://127.0.0.1:5001/#/experiments/{experiment}/runs?" in capsys.readouterr().out
    assert begun[0][2:4] == ["mlflow", "server"] and tracking_uri(smoke.folder, smoke.study) in begun[0]


@pytest.mark.parametrize(("answer", "said"), [(b"OK", "MLflow is running already: http"), (b"?", "another program")])
def test_a_port_that_is_in_use_is_said(
    answer: bytes, said: str, smoke: StudyResults, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("a second server is started"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with contextlib.suppress(UserError) if answer == b"OK" else pytest.raises(UserError, match=said):
            serve(smoke.folder, smoke.study, server.server_port)
        server.shutdown()
    assert (said in capsys.readouterr().out) == (answer == b"OK")


def test_the_status_says_what_happened(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_curve_grows_while_a_study_is_running(study: Study, tmp_path: Path, root: Path) -> None:
    """A real workflow, which is then stopped."""
    uri = str(study.tracking.uri)
    smoke = {"base": str(root / "studies" / "smoke.yaml"), "name": "live", "seeds": [0], "model": {"starts": 1}}
    smoke |= {"experiments": {"headline": {"methods": ["grpo"]}}, "figures": ["dynamics"], "tracking": {"uri": uri}}
    smoke["training"] = {"steps": 4000, "validate_every": 4000, "checkpoint_every": 4000}
    path = write_study(tmp_path / "live.yaml", smoke)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--cores", "2"]
    command += ["--directory", str(tmp_path), "--configfile", str(path), "--", "all"]
    with (tmp_path / "workflow.log").open("w") as log:
        workflow = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True)

    def wait_until(holds: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError, ValueError):  # no experiment yet, or no run
                if holds():
                    return
            assert time.monotonic() < end
            time.sleep(0.5)

    try:
        wait_until(lambda: bool(history(uri, METRIC)), 240)
        first = history(uri, METRIC)[-1][0]
        wait_until(lambda: history(uri, METRIC)[-1][0] > first, 120)
        assert workflow.poll() is None
    finally:
        os.killpg(workflow.pid, signal.SIGTERM)
        workflow.wait(60)
    # The run says that it was stopped, and the follower, which outlives the workflow by a moment, passes it on.
    wait_until(lambda: [run.info.status for run in in_mlflow(uri).values()] == ["KILLED"], 60)
