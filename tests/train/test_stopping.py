"""Stopping before a time limit; what SLURM says about the time that is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from policygrain.cli import STOPPED, main
from policygrain.files import read_json_lines
from policygrain.train.stopping import SPARE_SECONDS, Stop, deadline, parse_time_left

from ..support.small import SMALL, write_study


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
    [
        ("59", 59),
        ("4:05", 245),
        ("1:00:00", 3600),
        ("2-00:00:01", 172801),
        ("UNLIMITED", None),
        ("infinite", None),
        ("", None),
    ],
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


def test_a_run_out_of_time_saves_exits_with_75_and_ends_like_any_other(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_study(tmp_path / "study.yaml", {**SMALL, "training": {**SMALL["training"], "checkpoint_every": 100}})
    command = ["train", "--config", str(config), "--results", str(made[0].parent), "--run-dir"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert main([*command, str(whole)]) == 0
    # No time at all: one step per session.
    for step in range(1, SMALL["training"]["steps"] + 1):
        assert main([*command, str(run), "--time-limit", "0"]) == STOPPED
        said = capsys.readouterr().err
        assert f"stopped by the time limit after step {step} of 4" in said and "The same command resumes" in said
    assert main([*command, str(run), "--time-limit", "0"]) == 0
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert [row["step"] for row in read_json_lines(run / "metrics.jsonl")] == [0, 1, 2, 3, 4]
