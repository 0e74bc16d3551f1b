"""Stopping before a time limit; what SLURM says about the time that is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from policygrain.train.stopping import SPARE_SECONDS, Stop, deadline, parse_time_left


def test_no_step_is_started_that_would_not_fit() -> None:
    now = time.monotonic()
    assert Stop(now + SPARE_SECONDS + 25).after_step(10.0) is None  # 10 for the step, 10 more for saving it
    assert Stop(now + SPARE_SECONDS + 15).after_step(10.0) == "the time limit"
    stop = Stop(now + SPARE_SECONDS + 15)
    assert stop.after_step(1.0) is None
    assert stop.after_step(10.0) == "the time limit"
    assert stop.after_step(1.0) == "the time limit"  # the longest so far counts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("59", 59), ("4:05", 245), ("1:00:00", 3600), ("2-00:00:01", 172801), ("UNLIMITED", None), ("", None)],
)
def test_time_left_as_slurm_prints_it(text: str, seconds: float | None) -> None:
    assert parse_time_left(text) == seconds


def test_the_deadline_is_the_one_given_or_that_of_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    assert deadline() is None

    def left(moment: float | None) -> float:
        assert moment is not None
        return moment - time.monotonic()

    assert left(deadline(2)) == pytest.approx(120, abs=1)
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\n[ $3 = 17 ] && echo 1:30\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert left(deadline()) == pytest.approx(90, abs=1)
    monkeypatch.setenv("SLURM_JOB_ID", "18")  # squeue fails: no limit is known, and that is no reason to end
    assert deadline() is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 50))
    assert left(deadline()) == pytest.approx(50, abs=2)
