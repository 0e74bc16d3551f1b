"""Whether a run is being trained: what its process said last, and whether that process still exists."""

from __future__ import annotations

import fcntl

from .layout import RunFolder
from .schema import RunStatus, read_record


def run_status(run: RunFolder) -> RunStatus:
    """What the process that trains a run last said of it."""
    return read_record(RunStatus, run.status, "Train the run again.")


def is_training(run: RunFolder) -> bool:
    """Whether a process holds the lock of the run's folder."""
    try:
        with run.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
