"""Runs in MLflow while they train: every step once, whatever happens to the trainer, the follower or the server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.errors import Stopped, UserError
from policygrain.results.job_state import is_training, run_status
from policygrain.results.layout import RunFolder, StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.results.schema import RunStatus, write_record
from policygrain.study import Study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import Run
from policygrain.track import follow
from policygrain.track.follow import Follower
from policygrain.track.mirror import mirror
from policygrain.train.status_record import complete_status, recorded_status

from ..support.made_up import make_up_run
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


@pytest.fixture
def study(tmp_path: Path) -> Study:
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
    """The runs of seeds by name."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("live")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], 'tags."grain.role" = "seed"')
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
    follower = Follower(StudyFolder(tmp_path / "live"), study)
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
    Follower(StudyFolder(tmp_path / "live"), study).look()  # another follower, as of a workflow that was started again
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
    uri, follower = str(study.tracking.uri), Follower(StudyFolder(tmp_path / "live"), study)
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
    follower = Follower(StudyFolder(tmp_path / "live"), study)
    follower.look()
    with run.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_training(run)
        follower.look(workflow_ended=True)  # a job that goes on without the workflow
        assert [r.info.status for r in in_mlflow(str(study.tracking.uri)).values()] == ["RUNNING"]
    follower.look(workflow_ended=True)
    assert [r.info.status for r in in_mlflow(str(study.tracking.uri)).values()] == ["KILLED"]


def test_a_run_with_other_settings_gets_a_run_of_its_own(study: Study, run: RunFolder, tmp_path: Path) -> None:
    follower = Follower(StudyFolder(tmp_path / "live"), study)
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
        follower = Follower(StudyFolder(tmp_path / "live"), hanging)
        for tried in range(1, 4):
            begin = time.monotonic()
            follower.look()
            assert time.monotonic() - begin < 10
            assert follower.pause == follow.PAUSE * 2**tried
    assert capsys.readouterr().err.count("next try in") == 3
    write_rows(run, 5)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    follower.study = small_study(name="live", seeds=[0], tracking={"uri": store})
    follower.look()
    assert len(history(store, "sampled_accuracy")) == 5 and follower.pause == follow.PAUSE


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
    smoke = yaml.safe_load((root / "studies" / "smoke.yaml").read_text())
    smoke |= {"base": str(root / "config.yaml"), "name": "live", "seeds": [0]}
    smoke |= {"experiments": {"headline": {"methods": ["grpo"]}}, "tracking": {"uri": uri}}
    smoke |= {"controls": None, "estimators": None, "rounds": None, "figures": ["dynamics"]}
    smoke["training"] |= {"steps": 4000, "validate_every": 4000, "checkpoint_every": 4000}
    smoke["model"] |= {"starts": 1}
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
