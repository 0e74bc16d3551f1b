"""Runs in MLflow: every step once, whatever happens to training or to the server, and training never waits."""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from policygrain import tracking
from policygrain.cli import main
from policygrain.commands import ui
from policygrain.errors import Stopped, UserError
from policygrain.paths import StudyFolder
from policygrain.records import write_record
from policygrain.results import StudyResults, model_evaluation, run_summary
from policygrain.study import load_study, study_text
from policygrain.study.runs import Run
from policygrain.study.schema import Tracking
from policygrain.text import redacted

from ..support.files import write_lines
from ..support.made_up import make_up, make_up_run
from ..support.mlflow_store import Store
from ..support.small import small_study
from . import CASES

STEPS, STARTED = 6, 1_700_000_000.0
ROWS = [{"step": step, "total_tokens": 10 * step, "sampled_accuracy": step / 10} for step in range(STEPS + 1)]


class Training:
    """A study of one run, of which two steps are done, and what MLflow has of it."""

    def __init__(self, folder: Path, uri: str | None = None) -> None:
        self.uri = uri or f"sqlite:///{folder}/mlflow.db"
        study, results = small_study(name="live", seeds=[0], tracking={"uri": self.uri}), StudyFolder(folder / "live")
        self.results, self.later = StudyResults(results.path, study), folder / "summary of later"
        self.run = make_up_run(study, results, Run("grpo", 0), ROWS)
        self.run.summary.rename(self.later)
        self.write(2)

    def write(self, steps: int, repeated_from: int = STEPS) -> None:
        """The run's files after so many steps; those from ``repeated_from`` on were made by a second attempt."""
        write_lines(self.run.metrics, ROWS[:steps])
        again = [int(step >= repeated_from) for step in range(min(steps, STEPS))]
        rows = [{"step": s, "seconds/total": 1.0 + a, "time": STARTED + 10 * s + 1000 * a} for s, a in enumerate(again)]
        write_lines(self.run.timings, rows)

    def end(self) -> None:
        self.write(STEPS + 1, repeated_from=1)
        self.later.rename(self.run.summary)

    def log(self, status: str = "RUNNING") -> str:
        study = self.results.study
        return tracking.log_run(*tracking.connect(self.results.folder, study), study, self.run, status)

    def live(self, **section: Any) -> Any:
        study = self.results.study.model_copy(update={"tracking": Tracking(uri=self.uri, **section)})
        return tracking.live(study, self.results.folder, self.run)

    @property
    def status(self) -> Any:
        return Store(self.uri, "live").runs["grpo seed 0"].info.status

    def logged(self, steps: int) -> bool:
        """Whether so many steps are, each once."""
        curve = Store(self.uri, "live").curve("grpo seed 0", "sampled_accuracy")
        return curve == [(step, step / 10) for step in range(steps)]


@pytest.fixture
def training(empty_store, tmp_path, monkeypatch):
    shutil.copy(empty_store, tmp_path)
    monkeypatch.setattr(tracking, "PAUSE", 0.05)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return Training(tmp_path)


def wait_until(condition: Callable[[], Any]) -> None:
    """Until it is true and raises nothing, at most a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            if condition():
                return
        time.sleep(0.05)
    assert condition()


def test_steps_are_logged_once_while_the_run_is_trained_killed_and_resumed(training):
    run, store = training.log(), Store(training.uri, "live")
    points = store.client.get_metric_history(run, "sampled_accuracy")
    assert [point.timestamp for point in points] == [int(1000 * (STARTED + 10 * s)) for s in range(2)]
    assert training.logged(2) and training.status == "RUNNING"
    # A step whose timings are not complete waits.
    training.write(3)
    with training.run.metrics.open("a") as metrics, training.run.timings.open("a") as timings:
        metrics.write(json.dumps(ROWS[3]) + "\n")
        timings.write('{"step": 3, "sec')
    training.log("FAILED")
    assert training.logged(3) and training.status == "FAILED"
    # It resumes at step 1: it repeats steps, with equal metrics and other timings.
    training.write(2, repeated_from=1)
    training.log()
    assert training.status == "RUNNING"
    training.end()
    for _ in range(2):
        assert tracking.track(training.results).runs == {"grpo/seed0": run}
        assert training.logged(STEPS + 1) and training.status == "FINISHED"
        assert store.curve("grpo seed 0", "seconds/total") == [(s, 1.0 if s < 3 else 2.0) for s in range(STEPS)]


ENDS = {"FINISHED": None, "KILLED": Stopped("SIGTERM"), "FAILED": UserError("the gradient is not finite")}


@pytest.mark.parametrize("status", ENDS)
def test_a_run_logs_its_steps_and_how_it_ended(status, training):
    error = ENDS[status]
    with pytest.raises(type(error)) if error else contextlib.nullcontext(), training.live():
        training.write(4)
        wait_until(lambda: training.logged(4))
        if error:
            raise error
        training.end()
    assert training.status == status and training.logged(4 if error else STEPS + 1)


@pytest.mark.parametrize("live", [True, False])
def test_a_run_that_does_not_log_itself_is_left_to_track(live, training, monkeypatch):
    """By `tracking.live`, or since nodes of a cluster do not share a SQLite file."""
    monkeypatch.setattr(tracking.threading, "Thread", None)
    if live:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    with training.live(live=live):
        training.end()
    tracking.track(training.results)
    assert training.logged(STEPS + 1)


# ---- servers --------------------------------------------------------------------------------------------------------

SLOW = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}
TRAINING = """
import sys
from pathlib import Path
import policygrain.trainers.run
from policygrain import tracking
from policygrain.results import StudyResults

tracking.PAUSE, tracking.LAST = 0.1, 1.0
results = StudyResults(Path(sys.argv[1]))
with tracking.live(results.study, results.folder, results.folder.run("grpo", 0)):
    print("mlflow" in sys.modules, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("server", ["absent", "hung"])
def test_without_an_answer_training_and_its_process_end_at_once(server, training):
    """Training ends here when the thread has tried to reach MLflow."""
    with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as connections:
        silent.settimeout(60)
        address = f"http://127.0.0.1:{silent.getsockname()[1] if server == 'hung' else 9}"
        study, path = training.results.study, training.results.folder.study
        path.write_text(study_text(study.model_copy(update={"tracking": Tracking(uri=address)}), path))
        command = [sys.executable, "-c", TRAINING, str(path.parent)]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, env={**os.environ, **SLOW}, text=True, **streams) as process:
            assert process.stdout.readline() == "False\n", "the start of training does not import MLflow"
            if server == "hung":
                connections.enter_context(silent.accept()[0])
            else:
                assert "does not answer" in process.stderr.readline()
            began = time.monotonic()
            process.stdin.close()
            assert process.wait(30) == 0 and time.monotonic() - began < 15
            assert "Traceback" not in process.stderr.read()


@contextlib.contextmanager
def server(port: int, *options: str) -> Iterator[None]:
    """MLflow's own, which is killed at the end."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port), *options]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_what_a_server_missed_while_it_was_dead_is_completed_by_track(empty_store, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    training, store = Training(tmp_path, f"http://127.0.0.1:{port}"), shutil.copy(empty_store, tmp_path)
    options = ["--backend-store-uri", f"sqlite:///{store}", "--artifacts-destination", str(tmp_path / "files")]
    with contextlib.ExitStack() as alive:
        alive.enter_context(server(port, *options))
        with training.live():
            wait_until(lambda: training.logged(2))
            alive.close()
            training.end()
            began = time.monotonic()
        assert time.monotonic() - began < tracking.LAST + 1
    with server(port, *options):
        (run,) = tracking.track(training.results).runs.values()
        assert training.logged(STEPS + 1) and training.status == "FINISHED"
        files = Store(training.uri, "live").client.list_artifacts(run)
        assert {file.path for file in files} == {"metrics.jsonl", "timings.jsonl", "summary.json"}


# ---- a finished study -----------------------------------------------------------------------------------------------


@pytest.fixture
def smoke(empty_store, root, tmp_path, monkeypatch):
    """The made-up results of a finished study, of its headline alone: two methods with two seeds."""
    shutil.copy(empty_store, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = load_study(root / "tests/support/every_stage.yaml")
    headline = {"experiments": {"headline": study.experiments["headline"]}}
    return StudyResults(make_up(study.model_copy(update=headline), tmp_path / "smoke", {}))


def test_ui_says_that_mlflow_is_running_or_that_another_program_is(smoke, capsys, monkeypatch):
    monkeypatch.setattr(ui.os, "execv", lambda *_: pytest.fail("a second server is started"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(ui, "urlopen", lambda *_, **__: io.BytesIO(b"OK"))
        ui.serve(smoke.folder, smoke.study, port)
        assert f"MLflow is running already: http://127.0.0.1:{port}/#/exp" in capsys.readouterr().out
        monkeypatch.setattr(ui, "urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError))
        with pytest.raises(UserError, match="is used by another program"):
            ui.serve(smoke.folder, smoke.study, port)
    view = json.loads(store_of(smoke).client.get_experiment_by_name("smoke").tags["mlflow.sharedViewState.policygrain"])
    assert view["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "arm"}]


def store_of(results: StudyResults) -> Store:
    return Store(f"sqlite:///{results.folder.path.parent}/mlflow.db", "smoke")


# In the made-up records seed s ends with 0.5 + 0.1 s.
VALIDATION = [(0, 0.0), (2, pytest.approx(1 / 3)), (3, 0.5)]


def test_runs_that_were_trained_or_evaluated_again_replace_the_old_ones(smoke, tmp_path):
    """A run comes in later, another is trained again, a third evaluated again; creating a fourth was answered late."""
    late, again, evaluated = smoke.folder.run("tepo", 1), smoke.folder.run("grpo", 0), smoke.folder.run("tepo", 0)
    late.path.rename(tmp_path / "not yet")
    first = tracking.track(smoke).runs
    assert set(first) == {run.name for run in smoke.matrix.runs} - {"tepo/seed1"}
    (tmp_path / "not yet").rename(late.path)
    for path in (again.config, again.summary):
        path.write_text(path.read_text().replace(run_summary(again).key, "of other settings", 1))
    evaluation = model_evaluation(evaluated.evaluation)
    right = [record.model_copy(update={"accuracy": 1.0}) for record in evaluation.records]
    other = evaluation.model_copy(update={"key": "of another protocol", "records": right})
    write_record(evaluated.evaluation.record, other)
    store = store_of(smoke)
    twice = smoke.folder.run("grpo", 1)
    tags = {tracking.NAME: "grpo/seed1", tracking.KEY: run_summary(twice).key, tracking.FOLDER: str(twice.path)}
    store.client.create_run(store.experiment, tags=tags)
    second = tracking.track(StudyResults(smoke.folder.path)).runs
    assert {name for name in second if second[name] == first.get(name)} == {"tepo/seed0", "grpo/seed1"}
    assert set(second.values()) == {run.info.run_id for run in store.runs.values()}
    assert store.curve("grpo seed 0", "validation_accuracy") == VALIDATION
    # MLflow draws bars for metrics whose only step is 0.
    assert {step for step, _ in store.curve("tepo seed 0", "test/average")} == {0}
    assert store.runs["tepo seed 0"].data.metrics["test/average"] == 1


REQUESTS = ("create_run", "log_batch", "set_tag", "log_artifact", "log_artifacts", "set_terminated")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_what_is_killed_after_any_request_is_completed_by_the_next(smoke, monkeypatch):
    """Killed after each of its requests in turn, by restarting until none is left."""
    import mlflow

    killed_after: set[tuple[str, ...]] = set()

    def killed_once(name: str) -> Callable[..., Any]:
        request = getattr(mlflow.MlflowClient, name)

        def carried_out(client: Any, *args: Any, **more: Any) -> Any:
            answer = request(client, *args, **more)
            if (this := (name, args[0], args[1] if name == "set_tag" else "", *more)) not in killed_after:
                killed_after.add(this)
                raise Killed
            return answer

        return carried_out

    for name in REQUESTS:
        monkeypatch.setattr(mlflow.MlflowClient, name, killed_once(name))
    finished = None
    while finished is None:
        with contextlib.suppress(Killed):
            finished = tracking.track(smoke)
    assert len(killed_after) > 20
    store = store_of(smoke)
    assert {run.info.run_id for run in store.runs.values()} == set(finished.runs.values())
    assert {run.info.status for run in store.runs.values()} == {"FINISHED"}
    assert store.curve("grpo seed 0", "validation_accuracy") == VALIDATION


@pytest.mark.slow
def test_two_calls_on_a_new_store_both_succeed(smoke):
    (smoke.folder.path.parent / "mlflow.db").unlink()
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(tracking.connect, smoke.folder, smoke.study) for _ in range(2)]
    assert [call.result()[1] for call in calls] == [store_of(smoke).experiment] * 2
    assert sorted(path.name for path in smoke.folder.path.parent.iterdir()) == ["mlflow.db", "smoke"]


def test_the_address_of_the_runs_is_printed_and_mlflow_takes_over(smoke, monkeypatch, capsys):
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: begun.append(command))
    ui.serve(smoke.folder, smoke.study, 5000)
    assert f"/#/experiments/{store_of(smoke).experiment}/runs?" in capsys.readouterr().out
    assert begun[0][2:4] == ["mlflow", "server"] and tracking.tracking_uri(smoke.folder, smoke.study) in begun[0]


SECRET = "s3cr3t-of-mine"
NOWHERE = f"http://someone:{SECRET}@127.0.0.1:9"  # nothing listens on this port


@pytest.mark.parametrize(("uri", "shown"), CASES["addresses"].items())
def test_addresses_are_shown_without_credentials(uri, shown):
    assert redacted(uri) == shown


def test_no_message_or_record_holds_credentials(copied, empty_store, monkeypatch, capfd):
    """Of a server that is not reached, and of a SQLite file, whose address may have some that SQLite ignores."""
    folder, track = StudyFolder(copied), ["track", "--config", str(copied / "study.yaml"), "--results", str(copied)]
    folder.tracking.unlink(missing_ok=True)
    for name, value in {"MAX_RETRIES": "0", "TIMEOUT": "2"}.items():
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    assert main(track) == 2 and not folder.tracking.exists()
    said = capfd.readouterr()
    assert "tracking.uri: MLflow at http://127.0.0.1:9 does not answer" in said.err and "Traceback" not in said.err
    assert SECRET not in said.out + said.err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(empty_store, copied.parent)}?password={SECRET}")
    assert main(track) == 0 and SECRET not in folder.tracking.read_text()
