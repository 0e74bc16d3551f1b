"""Ending in time: a signal, or the end of a batch job's time, is a request that the loop reads between two steps.

Periodic checkpoints are what a run can rely on; this saves the steps since the last one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # of schedulers before they kill, of a closed terminal
SPARE_SECONDS = 30.0  # for the checkpoint, and for Snakemake to notice


class Stop:
    """While entered, SIGTERM and SIGUSR1 are noted and end nothing by themselves.

    ``deadline`` is a moment of `time.monotonic`, or None.
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
        """Why to stop after a step that took ``seconds``; None to go on.

        Another step must fit in what is left, and as much again with half a minute for saving it. A session always does
        one step, so that a run with too short a limit still comes to its end.
        """
        self._longest = max(self._longest, seconds)
        if self._signal is not None:
            return signal.Signals(self._signal).name
        if self.deadline is not None and time.monotonic() + 2 * self._longest + SPARE_SECONDS > self.deadline:
            return "the time limit"
        return None


def deadline(minutes: float | None = None) -> float | None:
    """When to be done, as a moment of `time.monotonic`: in so many minutes, else when this SLURM job has to end."""
    left = minutes * 60 if minutes is not None else _job_seconds_left()
    return None if left is None else time.monotonic() + left


def _job_seconds_left() -> float | None:
    """Asked of the environment, else of the controller; None outside a job, without a limit, or without an answer."""
    if (end := os.environ.get("SLURM_JOB_END_TIME", "")).isdecimal():
        return int(end) - time.time()
    if "SLURM_JOB_ID" not in os.environ:
        return None
    command = ["squeue", "--noheader", "--job", os.environ["SLURM_JOB_ID"], "--format=%L"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_time_left(done.stdout.strip())


def parse_time_left(text: str) -> float | None:
    """SLURM's `[[[days-]hours:]minutes:]seconds` in seconds; None for UNLIMITED and the like."""
    match = re.fullmatch(r"(?:(?:(?:(\d+)-)?(\d+):)?(\d+):)?(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
