"""A method's ratio that takes its time while a file says so: a training run that can be met in its middle."""

import sys
import time
from pathlib import Path

from torch import Tensor

from policygrain.objective.batch import TokenBatch
from policygrain.objective.ratio import TokenRatio


def slow(batch: TokenBatch, *, name_of_run: str) -> Tensor:
    """The token ratio. While `slow/NAME_OF_RUN` is there, each call waits for the seconds in it.

    In this run's trainer only: every process that reads the study tries the function on a small example.
    """
    file = Path("slow") / name_of_run
    if name_of_run in sys.argv and file.exists():
        end = time.monotonic() + float(file.read_text())
        while time.monotonic() < end and file.exists():
            time.sleep(0.05)
    return TokenRatio()(batch)


def broken(batch: TokenBatch) -> Tensor:
    """Nothing that can be trained on."""
    return TokenRatio()(batch) * float("nan")
