"""Cooperative stopping: the loop checks for signals and for the time limit of a batch job between two steps."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # sent by schedulers before SIGKILL, and by a closed terminal
SPARE_SECONDS = 30.0  # time for writing the checkpoint and for Snakemake to see the exit code


class Stop:
    """Context in which SIGNALS are recorded and do not end the process; `after_step` says whether to stop."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline  # of `time.monotonic`
        self._signal: int | None = None
        self._longest = 0.0

    def __enter__(self) -> Stop:
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
        self._before: dict[int, Any] = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def after_step(self, seconds: float) -> str | None:
        """The reason to stop after a step that took ``seconds``; None if two more, and saving, fit into the time left.

        Every call completes at least one step, so that a run with a short limit still finishes after several calls.
        """
        self._longest = max(self._longest, seconds)
        if self._signal is not None:
            return signal.Signals(self._signal).name
        if self.deadline is not None and time.monotonic() + 2 * self._longest + SPARE_SECONDS > self.deadline:
            return "the time limit"
        return None


def deadline(minutes: float | None = None) -> float | None:
    """The deadline as a time of `time.monotonic`: in ``minutes``, else the end of this SLURM job, else None."""
    if minutes is not None:
        return time.monotonic() + minutes * 60
    end = os.environ.get("SLURM_JOB_END_TIME")
    return None if end is None else time.monotonic() + int(end) - time.time()
