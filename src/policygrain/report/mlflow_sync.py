"""Copies the runs of a study to MLflow from their files: while they are trained, and when all are done.

Training writes files and does not call MLflow, so no server can slow or stop it. On a cluster this runs beside
Snakemake, so compute nodes need no network.

`sync_run` adds what is missing, so it can be interrupted after any request and repeated. A run in MLflow is identified
by its key (study, arm, seed) and the digest of its settings and inputs. Its steps are logged in order, each in one
request; the last point of the metric `step` says where to continue.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..paths import RunFolder
from ..progress import Progress
from ..records import Environment, ModelEvaluation, TrackingRecord
from ..results import StudyResults, is_training, model_evaluation, run_config, run_status, run_summary
from ..study.runs import Run
from ..text import flat, redacted
from .mlflow_store import connect, only_writer, reason, tracking_uri
from .points import Point, scores, steps
from .samples import first_responses

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

BATCH = 1000  # maximum number of metrics per request
# Tags.
KEY, CONTENT = "policygrain.key", "policygrain.content"
COMPLETE = "policygrain.complete"  # the digest of the records that were logged; absent while something is missing
REASON = "reason"
PAUSE = 3.0  # seconds between two looks at the files
LONGEST_PAUSE = 60.0  # between two requests to a server that does not answer
# The follower repeats failed requests, so its client does not.
CLIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


def mirror(results: StudyResults) -> TrackingRecord:
    """Bring MLflow up to date with all runs, figures and tables; returns the ids of experiment and runs.

    MLflow's client retries requests without an answer for some minutes (MLFLOW_HTTP_REQUEST_MAX_RETRIES). After that
    UserError is raised; calling this again continues.
    """
    uri, runs = tracking_uri(results.folder, results.study), results.matrix.runs
    try:
        with only_writer(results.folder, wait=True):
            client, experiment = connect(results.folder, results.study)
            # In reverse order: MLflow shows the newest runs first, which should be the headline methods.
            found = {
                run.name: sync_run(client, experiment, results, run, last=True)
                for run in Progress(reversed(runs), "runs in MLflow", len(runs))
            }
            tags = {"study": results.study.name}
            drawn = open_run(client, experiment, f"{results.study.name}/report", "figures and tables", "drawn", tags).id
            for path in (results.folder.figure("any").parent, results.folder.table("any").parent):
                if path.is_dir():
                    client.log_artifacts(drawn, str(path), path.name)
            client.set_terminated(drawn)
    except UserError:
        raise
    except Exception as error:  # MLflow and its database drivers have no common error class
        raise UserError(
            f"tracking.uri: MLflow at {redacted(uri)} does not answer ({reason(error, uri)}). The records in "
            f"{results.folder.path} are not affected."
        ) from None  # the cause may contain the password
    return TrackingRecord(uri=redacted(uri), experiment=experiment, runs={n: id for n, id in found.items() if id})


def follow(results: StudyResults, parent: int) -> None:
    """Follow the study's runs until this process is no longer a child of ``parent``, which started it."""
    for name, value in CLIENT.items():
        os.environ.setdefault(name, value)
    follower, ended = Follower(results), False
    while not ended:
        time.sleep(follower.pause)
        ended = os.getppid() != parent
        follower.look(last=ended)


class Follower:
    """Copies runs whose files have changed to MLflow, again and again."""

    def __init__(self, results: StudyResults) -> None:
        self.results, self.pause = results, PAUSE
        self._connection: tuple[MlflowClient, str] | None = None
        # Runs that ended before are left to `mirror`.
        self._seen = {
            run: _versions(folder)
            for run in results.matrix.runs
            if (folder := results.run_folder(run)).summary.exists()
        }

    def look(self, last: bool = False) -> None:
        """Log new content of the files. If the server does not answer, the next attempt is after a longer pause.

        ``last``: the workflow has ended, and runs whose process was killed are marked as such.
        """
        there = {run: _versions(self.results.run_folder(run)) for run in self.results.matrix.runs}
        changed = [
            run
            for run, versions in there.items()
            if self._seen.get(run, ()) != versions or (last and not self.results.run_folder(run).summary.exists())
        ]
        if not changed:
            return
        try:
            with only_writer(self.results.folder, wait=False) as alone:
                for run in changed if alone else ():
                    self._connection = self._connection or connect(self.results.folder, self.results.study)
                    with contextlib.suppress(UserError):  # damaged files; `mirror` reports them
                        sync_run(*self._connection, self.results, run, last)
                        self._seen[run] = there[run]
            self.pause = PAUSE
        except Exception as error:  # MLflow and its database drivers have no common error class
            self._connection = None
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            what = reason(error, tracking_uri(self.results.folder, self.results.study))
            print(f"policygrain: MLflow: {what}; next try in {self.pause:.0f} s", file=sys.stderr, flush=True)


def sync_run(client: MlflowClient, experiment: str, results: StudyResults, run: Run, last: bool) -> str | None:
    """Bring a run in MLflow up to date with its files: parameters, new steps, status, and records when it has ended.

    Returns its id, or None if the run has not been started. ``last``: a run whose process no longer exists is marked as
    killed. UserError if its files are damaged.
    """
    from mlflow.entities import Param

    folder = results.run_folder(run)
    if not folder.config.exists():
        return None
    config, status = run_config(folder), run_status(folder)
    summary = run_summary(folder) if folder.summary.exists() else None
    if status is not None and status.key != config.key:
        status = None
    if status is None and summary is None:  # its files are being replaced by those of another run
        return None
    evaluated = summary is not None and folder.evaluation.record.exists()
    evaluation = model_evaluation(folder.evaluation) if evaluated else None
    content = f"{config.key}/{evaluation.key if evaluation else ''}" if summary else ""

    tags = {
        "study": results.study.name,
        "arm": run.arm,
        "method": run.arm.partition("+")[0],
        "seed": str(run.seed),
        "mlflow.user": _user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": f"policygrain train --arm {run.arm} --seed {run.seed}",
        "mlflow.note.content": f"Seed {run.seed} of `{run.arm}` in the study `{results.study.name}`.",
    }
    key, name = f"{results.study.name}/{run.arm}/{run.seed}", f"{run.arm} seed {run.seed}"
    started = status.started if status else None
    opened = open_run(client, experiment, key, name, config.key, tags, records=content, started=started)
    if not content or opened.tags.get(COMPLETE) != content:
        parameters = {**flat(config.method, "method"), **flat(config.training, "training"), "seed": run.seed}
        # A run may be resumed with other settings that change no result, and MLflow refuses to change parameters.
        if new := [Param(n, str(v)[:500]) for n, v in parameters.items() if n not in opened.params]:
            client.log_batch(opened.id, params=new)
        _log_steps(client, opened.id, steps(folder, after=opened.step))
        if summary:
            _log_records(client, opened.id, folder, summary.environment, evaluation)
            client.set_tag(opened.id, COMPLETE, content)

    state = "FINISHED" if summary or status is None else status.status
    if last and state == "RUNNING" and not is_training(folder):
        state = "KILLED"
    if opened.status != state:
        _set_status(client, opened.id, state, (status.ended if status else None) or _last_write(folder))
    why = status.reason[:5000] if status and not summary else ""
    if why and opened.tags.get(REASON) != why:
        client.set_tag(opened.id, REASON, why)
    if not why and REASON in opened.tags:  # the run was resumed
        client.delete_tag(opened.id, REASON)
    return opened.id


class Opened(NamedTuple):
    """A run in MLflow; ``step`` is the last that was logged, or -1."""

    id: str
    status: str
    step: int
    tags: dict[str, str]
    params: dict[str, str]


def open_run(
    client: MlflowClient,
    experiment: str,
    key: str,
    name: str,
    content: str,
    tags: dict[str, str],
    *,
    records: str = "",
    started: float | None = None,
) -> Opened:
    """The run with this key and content, created if there is none; runs with other content are deleted.

    Points cannot be removed from a run, so one in which other ``records`` are complete is deleted, too (MLflow keeps it
    as a deleted run). ``started`` is in seconds since 1970, now by default.
    """

    def with_key() -> list[MlflowRun]:
        return list(client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", order_by=["attributes.start_time ASC"]))

    def fits(run: MlflowRun) -> bool:
        # Records may be logged before the model is evaluated: the digest of those is the beginning of the later one.
        logged = run.data.tags.get(COMPLETE, "")
        return run.data.tags.get(CONTENT) == content and records.startswith(logged)

    runs = with_key()
    if not any(map(fits, runs)):
        start = int(1000 * (started or time.time()))
        client.create_run(experiment, start_time=start, run_name=name, tags={KEY: key, CONTENT: content, **tags})
        # If the server stopped before its answer, the client's retry may have created a second run.
        runs = with_key()
    same = [run for run in runs if fits(run)]
    chosen = next((run for run in same if COMPLETE in run.data.tags), same[0])
    for other in runs:
        if other is not chosen:
            client.delete_run(other.info.run_id)
    about, step = chosen.data, int(chosen.data.metrics.get("step", -1))
    return Opened(str(chosen.info.run_id), chosen.info.status, step, about.tags, about.params)


def _log_records(
    client: MlflowClient, run_id: str, folder: RunFolder, made_with: Environment, evaluation: ModelEvaluation | None
) -> None:
    """Log the scores of a run that has ended, and its files."""
    from mlflow.entities import RunTag

    tags = {"commit": made_with.commit, "hardware": made_with.hardware, "engine": made_with.engine}
    tags["mlflow.source.git.commit"] = made_with.commit.rstrip("+")
    tags["mlflow.source.git.dirty"] = str(made_with.commit.endswith("+"))
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
    for path in (folder.summary, folder.metrics, folder.timings):
        client.log_artifact(run_id, str(path))
    if evaluation:
        _log_steps(client, run_id, [scores(folder, evaluation)])
        client.log_artifacts(run_id, str(folder.evaluation.path), folder.evaluation.path.name)
        # MLflow shows this as a table, and compares it between runs.
        client.log_table(run_id, first_responses(folder.evaluation, evaluation), "samples.json")


def _log_steps(client: MlflowClient, run_id: str, steps: Iterable[list[Point]]) -> None:
    """Log the points of steps, those of one step in one request."""
    from mlflow.entities import Metric

    waiting: list[Metric] = []
    for points in steps:
        if len(waiting) + len(points) > BATCH:
            client.log_batch(run_id, metrics=waiting)
            waiting = []
        waiting += [Metric(p.name, p.value, p.time, p.step) for p in points]
    if waiting:
        client.log_batch(run_id, metrics=waiting)


def _set_status(client: MlflowClient, run_id: str, status: str, ended: float | None) -> None:
    """RUNNING, FINISHED, FAILED or KILLED; ``ended`` is in seconds since 1970, now by default."""
    if status == "RUNNING":
        client.update_run(run_id, status=status)
    else:
        client.set_terminated(run_id, status, int(1000 * ended) if ended else None)


def _versions(run: RunFolder) -> tuple[tuple[int, int], ...]:
    """Modification times and sizes of the run's files; empty if there are none."""
    versions = []
    for path in (run.status, run.metrics, run.timings, run.summary, run.evaluation.record):
        with contextlib.suppress(OSError):
            about = path.stat()
            versions.append((about.st_mtime_ns, about.st_size))
    return tuple(versions)


def _last_write(folder: RunFolder) -> float | None:
    """Time of the last write of timings, when a killed run ended, in seconds since 1970; None if there are none."""
    with contextlib.suppress(OSError):
        return folder.timings.stat().st_mtime
    return None


def _user() -> str:
    """The user's name; empty in a container whose user has none."""
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return ""
