"""The records that training writes: metrics and timings of each step, the status of the run."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import Stopped, UserError
from ..files import atomic_text, flush
from ..paths import RunFolder
from ..records import RunStatus, write_record
from ..results import run_status
from .ranks import is_rank_0, on_rank_0


class MetricsLog:
    """Appends a line per step to `metrics.jsonl` (determined by the seed) and `timings.jsonl` (not reproducible)."""

    def __init__(self, run: RunFolder, resume_at: int) -> None:
        """Keep the lines of the steps before ``resume_at``. UserError if one is missing."""
        self.run = run
        for path in (run.metrics, run.timings):
            on_rank_0(functools.partial(_truncate, path, resume_at))

    def metrics(self, row: dict[str, Any]) -> None:
        """Append a step's metrics."""
        _append(self.run.metrics, row)

    def timings(self, row: dict[str, Any]) -> None:
        """Append a step's timings."""
        _append(self.run.timings, row)

    def flush(self) -> None:
        """Flush both files to disk; called before a checkpoint is written."""
        if is_rank_0():
            for path in (self.run.metrics, self.run.timings):
                if path.exists():
                    flush(path)


def _truncate(path: Path, resume_at: int) -> None:
    """Remove the lines of steps from ``resume_at`` on, which are repeated. UserError if an earlier line is missing."""
    lines = path.read_bytes().splitlines()[:resume_at] if path.exists() else []
    for step in range(resume_at):
        try:
            recorded_step = json.loads(lines[step].decode("utf-8"))["step"]
        except (IndexError, ValueError, KeyError, TypeError, RecursionError):
            recorded_step = None
        if recorded_step != step:
            raise UserError(
                f"{path}: line {step + 1} is not step {step}, but there is a checkpoint of step {resume_at}: lines "
                f"were lost. Remove the folder {path.parent} to train the run from its beginning."
            )
    atomic_text(path, "".join(line.decode("utf-8") + "\n" for line in lines))


def line(row: Mapping[str, Any]) -> str:
    """``row`` as a line of `metrics.jsonl` or `timings.jsonl`; NaN and infinity are null."""
    return json.dumps({k: _plain(v) for k, v in row.items()}) + "\n"


def _append(path: Path, row: dict[str, Any]) -> None:
    if not is_rank_0():
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line(row))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}. Free some space and run the command again: it resumes."
        ) from error


def _plain(value: Any) -> Any:
    """``value``, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        # Not a collective operation, because other ranks may have ended. If the disk is full, ``error`` is shown.
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
