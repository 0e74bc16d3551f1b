"""Follows the runs of a study in MLflow while they are trained, from their files.

Training writes files and does not call MLflow, so no server can slow or stop it. This process reads the files and
logs the steps that MLflow does not have yet; after an outage, or when it is started again, it continues from there. On
a cluster it runs beside Snakemake, so compute nodes need no network.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from ..errors import UserError
from ..results.job_state import is_training, run_status
from ..results.layout import RunFolder, StudyFolder
from ..results.reader import run_config
from ..results.schema import RunStatus
from ..study import Study
from .mlflow_runs import last_step, log_steps, open_seed, set_status
from .points import steps_so_far
from .store import connect, only_writer, reason, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

REASON = "reason"  # tag
PAUSE = 3.0  # seconds between two looks at the files
LONGEST_PAUSE = 60.0  # between two requests to a server that does not answer
# This process repeats what failed, so the client need not.
CLIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


def follow(folder: StudyFolder, study: Study, parent: int) -> None:
    """Follow the study's runs until this process is no longer a child of ``parent``, which started it.

    At the end, runs whose process was killed are marked as such.
    """
    for name, value in CLIENT.items():
        os.environ.setdefault(name, value)
    follower = Follower(folder, study)
    while os.getppid() == parent:
        time.sleep(follower.pause)
        follower.look()
    follower.look(workflow_ended=True)


class Follower:
    """Copies new content of runs' files to MLflow, and remembers what was copied."""

    def __init__(self, folder: StudyFolder, study: Study) -> None:
        self.folder, self.study = folder, study
        self.pause = PAUSE
        self._client: MlflowClient | None = None
        self._experiment = ""
        self._opened: dict[str, str] = {}  # key of a run → id
        self._logged: dict[str, int] = {}  # id → last step in MLflow
        self._reasons: dict[str, str] = {}  # id → the tag in MLflow
        # Runs that ended before are left to `mirror`.
        self._seen = {run.path: _state(run) for run in self._runs() if run.summary.exists()}

    def look(self, workflow_ended: bool = False) -> None:
        """Log new content of the files. If the server does not answer, the next attempt is after a longer pause."""
        changed = [run for run in self._runs() if workflow_ended or self._seen.get(run.path) != _state(run)]
        if not changed:
            return
        try:
            with only_writer(self.folder, wait=False) as alone:
                if alone:
                    for run in changed:
                        self._update(run, workflow_ended)
            self.pause = PAUSE
        except Exception as error:  # MLflow and its database drivers have no common error class
            self._client = None
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            what = reason(error, tracking_uri(self.folder, self.study))
            print(f"policygrain: MLflow: {what}; next try in {self.pause:.0f} s", file=sys.stderr, flush=True)

    def _runs(self) -> list[RunFolder]:
        return self.folder.started_runs()

    def _update(self, run: RunFolder, workflow_ended: bool) -> None:
        state = _state(run)
        try:
            status, config = run_status(run), run_config(run)
        except UserError:  # being replaced by that of another run
            return
        if status is None or status.key != config.key:
            return
        if workflow_ended:
            if status.status != "RUNNING" or is_training(run):
                if self._seen.get(run.path) == state:
                    return
            else:
                status = status.model_copy(update={"status": "KILLED"})
        client = self._connected()
        if config.key not in self._opened:
            opened = open_seed(client, self._experiment, self.study, config, started=status.started)
            self._opened[config.key] = opened.id
            self._logged[opened.id] = last_step(client, opened.id)
            self._reasons[opened.id] = opened.tags.get(REASON, "")
        run_id = self._opened[config.key]
        new = list(steps_so_far(run, after=self._logged[run_id]))
        log_steps(client, run_id, new)
        self._logged[run_id] += len(new)
        set_status(client, run_id, status.status, _end(status, run))
        self._set_reason(client, run_id, status.reason[:5000])
        self._seen[run.path] = state

    def _set_reason(self, client: MlflowClient, run_id: str, reason: str) -> None:
        """Tag a run with the reason of its failure; the tag is removed when the run is resumed."""
        if reason == self._reasons[run_id]:
            return
        if reason:
            client.set_tag(run_id, REASON, reason)
        else:
            client.delete_tag(run_id, REASON)
        self._reasons[run_id] = reason

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client, self._experiment = connect(self.folder, self.study)
            self._opened.clear()
        return self._client


def _state(run: RunFolder) -> tuple[tuple[int, int], ...]:
    """Modification times and sizes of the run's files."""
    versions = []
    for path in (run.status, run.metrics, run.timings, run.summary):
        with contextlib.suppress(OSError):
            about = path.stat()
            versions.append((about.st_mtime_ns, about.st_size))
    return tuple(versions)


def _end(status: RunStatus, run: RunFolder) -> float | None:
    """End of a run: as recorded, or the time of its last write if it was killed; None while it runs."""
    if status.status == "RUNNING":
        return None
    with contextlib.suppress(OSError):
        return status.ended or run.timings.stat().st_mtime
    return status.started
