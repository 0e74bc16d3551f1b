"""Locks of a study's folder: one workflow at a time, and none while jobs of a killed one are still running.

The kernel releases a lock when its process ends, however it ends, so locks are never stale.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from ..errors import UserError
from .layout import StudyFolder, study_of

WAIT_FOR_JOBS = 20.0  # seconds; jobs that are killed with their workflow take a moment to end


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
    """Whether ``path`` could be locked, briefly or ``until_exit``. On file systems without locks it always can."""
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
