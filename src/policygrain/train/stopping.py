"""Cooperative stopping: the loop checks for signals and for the time limit of a batch job between two steps.

The run then saves a checkpoint, so that the steps since the last periodic checkpoint are not lost.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # sent by schedulers before SIGKILL, and by a closed terminal
SPARE_SECONDS = 30.0  # time for writing the checkpoint and for Snakemake to see the exit code


class Stop:
    """Context in which SIGNALS are recorded and do not end the process; `after_step` says whether to stop.

    ``deadline`` is a time of `time.monotonic`, or None.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self._signal: int | None = None
        self._longest = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def after_step(self, seconds: float) -> str | None:
        """The reason to stop after a step that took ``seconds``; None to continue.

        The remaining time must be enough for two steps and SPARE_SECONDS for saving. Every call completes
        at least one step, so that a run with a short time limit still finishes after several calls.
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
