"""The copy of a study in MLflow: a run logs itself while it is trained, and `track` completes it from the records.

Both log what the files of a run have and MLflow has not. So either can be interrupted after any request and repeated,
and nothing is logged twice.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .errors import Stopped, UserError
from .paths import RunFolder, StudyFolder
from .records import RunConfig, TrackingRecord
from .results import StudyResults, model_evaluation, run_config, run_metrics, run_summary, run_timings
from .study import Study
from .text import flat, redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient, entities

SQLITE = "sqlite:///"
BATCH = 1000  # metrics of a request, at most
# Tags of a run: ARM/seedS; the digest of its settings and inputs; its folder, since studies of one name may share a
# server; and, set last, the digests of the records it has.
NAME, KEY, FOLDER = "policygrain.run", "policygrain.key", "policygrain.folder"
COMPLETE = "policygrain.complete"
# Seconds between two looks at the files of a run in training; and for the last of them. A run that ends before the
# first does not import MLflow, which takes as long as training a tiny model.
PAUSE, LAST = 60.0, 5.0


@contextmanager
def live(study: Study, results: StudyFolder, run: RunFolder) -> Iterator[None]:
    """Context of a run's training: a thread logs its steps and how it ended, if `tracking.live` is set.

    MLflow is imported and called in the thread alone: if it is slow, dead or not there, training does not notice.
    """
    uri, outcome = tracking_uri(results, study), queue.SimpleQueue[str]()
    if not study.tracking.live or (uri.startswith(SQLITE) and "SLURM_JOB_ID" in os.environ):  # nodes cannot share it
        yield
        return

    def log() -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        connection, status = None, "RUNNING"
        while status == "RUNNING":
            with suppress(queue.Empty):
                status = outcome.get(timeout=PAUSE)
            if status != "RUNNING" and connection is None:  # `track` will log it
                return
            try:
                with named(uri):
                    connection = connection or connect(results, study)
                    log_run(*connection, study, run, status)
            except UserError as error:
                print(f"policygrain: {error}", file=sys.stderr, flush=True)
                connection = None

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped = isinstance(sys.exc_info()[1], Stopped | KeyboardInterrupt | SystemExit)
        outcome.put("KILLED" if stopped else "FAILED")  # unless it has a summary
        thread.join(LAST)


def track(results: StudyResults) -> TrackingRecord:
    """Bring MLflow up to date with all runs that have begun. UserError if it does not answer after some minutes."""
    uri = tracking_uri(results.folder, results.study)
    with named(uri):
        client, experiment = connect(results.folder, results.study)
        folders = {run.name: results.run_folder(run) for run in results.matrix.runs}
        begun = {name: run for name, run in folders.items() if run.config.exists()}
        ids = {name: log_run(client, experiment, results.study, run) for name, run in begun.items()}
    return TrackingRecord(uri=redacted(uri), experiment=experiment, runs=ids)


def log_run(client: MlflowClient, experiment: str, study: Study, folder: RunFolder, status: str | None = None) -> str:
    """Bring a run in MLflow up to date with its files: parameters, new steps, and records when it has ended.

    ``status``: MLflow's, unless the run has ended. Returns the id in MLflow. UserError if the files are damaged.
    """
    from mlflow.entities import Metric, Param, RunTag

    config = run_config(folder)
    summary = run_summary(folder) if folder.summary.exists() else None
    evaluation = model_evaluation(folder.evaluation) if summary and folder.evaluation.record.exists() else None
    averaged = [b.name for b in study.evaluation.benchmarks if b.average]
    records = " ".join([config.key, *([evaluation.key, *averaged] if evaluation else [])])
    run = _open_run(client, experiment, config, folder)
    run_id = str(run.info.run_id)
    if summary and run.data.tags.get(COMPLETE) == records:
        return run_id

    # A run may be resumed with other settings that change no result, and MLflow refuses to change parameters.
    settings = {**flat(config.method, "method"), **flat(config.training, "training")}
    params = [Param(name, str(value)) for name, value in settings.items() if name not in run.data.params]
    tags = {"arm": config.arm, "method": config.arm.partition("+")[0], "seed": str(config.seed)}
    if summary:
        tags |= {name: getattr(summary.environment, name) for name in ("commit", "hardware", "engine")}
    client.log_batch(run_id, params=params, tags=[RunTag(name, text) for name, text in tags.items()])
    steps = _steps(folder)[int(run.data.metrics.get("step", -1)) + 1 :]
    size = BATCH // max(map(len, steps), default=1)  # whole steps: the metric `step` says which are logged
    for begin in range(0, len(steps), size):
        client.log_batch(run_id, metrics=[metric for step in steps[begin : begin + size] for metric in step])
    if evaluation:
        scores = {record.benchmark: record.accuracy for record in evaluation.records}
        scores["average"] = fmean(scores[name] for name in averaged or scores)
        made = int(1000 * time.time())  # MLflow shows the latest, and which benchmarks count may have changed
        # MLflow draws a bar for each run if a metric has no step but 0, and else a curve.
        client.log_batch(run_id, metrics=[Metric(f"test/{name}", score, made, 0) for name, score in scores.items()])
        client.log_artifacts(run_id, str(folder.evaluation.path), folder.evaluation.path.name)
    if summary:
        for path in (folder.summary, folder.metrics, folder.timings):
            client.log_artifact(run_id, str(path))
        client.set_terminated(run_id, "FINISHED", int(1000 * folder.summary.stat().st_mtime))
        client.set_tag(run_id, COMPLETE, records)
    elif status == "RUNNING":
        client.update_run(run_id, status)
    elif status:
        client.set_terminated(run_id, status)
    return run_id


def _open_run(client: MlflowClient, experiment: str, config: RunConfig, folder: RunFolder) -> entities.Run:
    """The run with this key, created if there is none; others of the same folder are deleted."""
    name, key, place = f"{config.arm}/seed{config.seed}", config.key, str(folder.path.resolve())
    runs = client.search_runs([experiment], f"tags.`{NAME}` = '{name}'", order_by=["attributes.start_time ASC"])
    chosen = next((run for run in runs if run.data.tags.get(KEY) == key), None)
    for other in runs:
        if other is not chosen and other.data.tags.get(FOLDER) == place:
            client.delete_run(other.info.run_id)
    if chosen and FOLDER not in chosen.data.tags:  # of an earlier version
        client.set_tag(chosen.info.run_id, FOLDER, place)
    begun = int(1000 * folder.config.stat().st_mtime)
    tags = {NAME: name, KEY: key, FOLDER: place}
    return chosen or client.create_run(experiment, begun, tags, f"{config.arm} seed {config.seed}")


def _steps(folder: RunFolder) -> list[list[entities.Metric]]:
    from mlflow.entities import Metric

    if not folder.timings.exists():
        return []
    metrics, timings, steps = run_metrics(folder), run_timings(folder), []
    if folder.summary.exists():  # the final validation has no timings
        timings += [{}] * (len(metrics) - len(timings))
    for row, timing in zip(metrics, timings, strict=False):
        at = int(1000 * timing.pop("time", folder.metrics.stat().st_mtime))
        numbers = {name: value for name, value in {**row, **timing}.items() if isinstance(value, int | float)}
        steps.append([Metric(name, number, at, row["step"]) for name, number in numbers.items()])
    return steps


def tracking_uri(folder: StudyFolder, study: Study) -> str:
    """The URI of the study file, else MLFLOW_TRACKING_URI, else a SQLite file next to the results of the study."""
    store = folder.path.parent.resolve() / "mlflow.db"
    return study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{store}"


def connect(folder: StudyFolder, study: Study) -> tuple[MlflowClient, str]:
    """A client and the id of the study's experiment, which is created if there is none."""
    os.environ |= {f"MLFLOW_{name}": "false" for name in ("CONFIGURE_LOGGING", "SERVER_ENABLE_JOB_EXECUTION")}
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    uri, name, location = tracking_uri(folder, study), study.name, None
    if uri.startswith(SQLITE):
        location = (folder.path.parent / "mlflow-artifacts" / name).resolve().as_uri()
        store = Path(uri.removeprefix(SQLITE).partition("?")[0])
        store.parent.mkdir(parents=True, exist_ok=True)
        if not store.exists():  # made elsewhere, because MLflow cannot use one whose creation was interrupted
            with TemporaryDirectory(dir=store.parent, prefix=f".{store.name}.") as made, suppress(FileExistsError):
                mlflow.MlflowClient(f"{SQLITE}{made}/{store.name}").search_experiments()
                os.link(f"{made}/{store.name}", store)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    if experiment is None:
        # What `policygrain ui` opens, as MLflow's button "Share" saves it: runs grouped by arm, accuracy first.
        view = (resources.files(__package__) / "mlflow_view.json").read_text()
        # The UI shows charts of runs for this kind of experiment, and traces of language models for the other one.
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.sharedViewState.policygrain": view}
        try:
            return client, str(client.create_experiment(name, location, tags))
        except mlflow.MlflowException:  # another process may have created it in the meantime
            if (experiment := client.get_experiment_by_name(name)) is None:
                raise
    return client, str(experiment.experiment_id)


@contextmanager
def named(uri: str) -> Iterator[None]:
    """Context of requests to MLflow: any error is a UserError that names the address without secrets."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # MLflow and its database drivers have no common error class
        text = redacted(str(error).strip().partition("\n")[0])
        raise UserError(
            f"tracking.uri: MLflow at {redacted(uri)} does not answer ({text}). The records in the study's folder are "
            "complete without it, and `policygrain track` copies them."
        ) from None  # the cause may contain the password
