"""The status record of a run: being trained, ended, failed or stopped; for readers that follow it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ..errors import Stopped, UserError
from ..results.job_state import run_status
from ..results.layout import RunFolder
from ..results.schema import RunStatus, write_record
from .ranks import is_rank_0, on_rank_0


@contextlib.contextmanager
def recorded_status(run: RunFolder, key: str) -> Iterator[None]:
    """Context of one attempt to train a run: its status is `RUNNING` inside, and the outcome afterwards."""
    begun = on_rank_0(lambda: _begin(run, key))

    def end(status: str, reason: str = "") -> None:
        ended = begun.model_copy(update={"status": status, "ended": time.time(), "reason": reason})
        write_record(run.status, ended)

    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, Stopped | KeyboardInterrupt | SystemExit)
        # Not a collective operation: the other ranks may be gone. Without space on the disk, the error itself is shown.
        with contextlib.suppress(OSError, UserError):
            if is_rank_0():
                end("KILLED" if stopped else "FAILED", str(error) or type(error).__name__)
        raise
    on_rank_0(lambda: end("FINISHED"))


def complete_status(run: RunFolder) -> None:
    """Mark a run as finished if its process was killed after it had written the summary."""
    if (status := run_status(run)) is not None and status.status != "FINISHED":
        ended = run.summary.stat().st_mtime
        write_record(run.status, status.model_copy(update={"status": "FINISHED", "ended": ended, "reason": ""}))


def _begin(run: RunFolder, key: str) -> RunStatus:
    before = run_status(run)
    if before is None or before.key != key:
        before = RunStatus(key=key, status="RUNNING", started=time.time(), attempts=0)
    begun = RunStatus(key=key, status="RUNNING", started=before.started, attempts=before.attempts + 1)
    write_record(run.status, begun)
    return begun
