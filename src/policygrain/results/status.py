"""Whether a run is being trained: its recorded status, and whether its process still exists."""

from __future__ import annotations

import fcntl

from ..errors import UserError
from .layout import RunFolder
from .schema import RunStatus, read_record


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
