"""Finished, running and stopped jobs of a study: marker files, locks, and the status of a run.

The kernel releases a lock when its process ends or is killed, so locks are never stale.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from .errors import UserError
from .paths import RunFolder, StudyFolder, study_of
from .records import Done, RunStatus, read_record, write_record

FINGERPRINT = r"[0-9a-f]{16}"
WAIT_FOR_JOBS = 20.0  # seconds; jobs that are killed with their workflow take a moment to end


def begin(path: Path, results: Collection[str]) -> None:
    """Remove the files of finished jobs whose results are about to be overwritten; ``results`` names them.

    These are files of the same job with other fingerprints, and of jobs that were divided differently.
    """
    job = re.fullmatch(rf"(.+-){FINGERPRINT}", path.stem)
    for other in path.parent.glob(f"*{path.suffix}") if job else ():
        same_job = job and re.fullmatch(rf"{re.escape(job[1])}{FINGERPRINT}", other.stem)
        if other != path and (same_job or _results_of(other) & set(results)):
            other.unlink(missing_ok=True)


def write_done(path: Path, results: Mapping[str, str]) -> None:
    """Write the file at the end of a job: result → its digest or key."""
    write_record(path, Done(results=dict(results)))


def _results_of(path: Path) -> set[str]:
    """The results that a finished job names; empty where its file cannot be read."""
    try:
        return set(json.loads(path.read_bytes())["results"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def lock_workflow(folder: StudyFolder) -> None:
    """Lock the study for this workflow until this process ends. UserError if another one is running."""
    folder.path.mkdir(parents=True, exist_ok=True)
    if not _lock(folder.workflow_lock, fcntl.LOCK_EX):
        running = folder.workflow_lock.read_text().strip() or "another process"
        raise UserError(
            f"{folder.path}: this study is being run already, by {running}. Wait until that has ended, or stop it with "
            "Ctrl-C; then the same command continues."
        )
    folder.workflow_lock.write_text(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n")


def wait_for_jobs(folder: StudyFolder, seconds: float = WAIT_FOR_JOBS) -> None:
    """Wait for jobs that a killed workflow left behind. UserError if some are still running after ``seconds``."""
    end = time.monotonic() + seconds
    while not _lock(folder.jobs_lock, fcntl.LOCK_EX, until_exit=False):
        if time.monotonic() >= end:
            raise UserError(
                f"{folder.path}: jobs of an earlier call, which was killed, are still running. Wait until they have "
                "ended, or end them (`pgrep -af policygrain.cli` shows them); then the same command continues."
            )
        time.sleep(0.2)


def start_job(done: Path) -> None:
    """Hold the lock of running jobs of the study that ``done`` belongs to, until this process ends."""
    if folder := study_of(done):
        _lock(folder.jobs_lock, fcntl.LOCK_SH)


def _lock(path: Path, kind: int, until_exit: bool = True) -> bool:
    """Lock ``path``, ``until_exit`` or only for a moment; returns whether that was possible.

    On file systems without locks nothing is locked, and the result is True.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        pass
    if not until_exit:
        os.close(descriptor)
    return True


def run_status(run: RunFolder) -> RunStatus | None:
    """The last recorded status of a run; None without a readable record."""
    try:
        return read_record(RunStatus, run.status, "")
    except UserError:
        return None


def is_training(run: RunFolder) -> bool:
    """Whether a process holds the lock of the run's folder."""
    try:
        with run.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is locked, or the file system has no locks
        return True
    return False
