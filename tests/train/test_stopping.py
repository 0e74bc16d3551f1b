"""Ending in time: by a signal, before a limit; what was asked of SLURM; waiting for a predecessor."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml

from policygrain.cli import STOPPED, main
from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.train import checkpoint
from policygrain.train.stopping import SPARE_SECONDS, Stop, deadline, parse_time_left

from ..support.small import SMALL, make_start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noted_and_ends_nothing(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop() as stop:
        assert stop.after_step(1.0) is None
        os.kill(os.getpid(), number)
        assert stop.after_step(1.0) == number.name
    assert signal.getsignal(number) is before


def test_a_step_that_would_not_fit_is_not_begun() -> None:
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
def test_time_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    assert parse_time_left(text) == seconds


def test_the_deadline_is_what_is_asked_else_the_job_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_run_out_of_time_saves_exits_with_its_own_code_and_ends_like_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, start = make_start(tmp_path)
    config = tmp_path / "study.yaml"
    config.write_text(yaml.safe_dump({**SMALL, "training": {**SMALL["training"], "checkpoint_every": 100}}))
    command = ["train", "--config", str(config), "--start", str(start), "--data", str(data), "--run-dir"]
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert main([*command, str(whole)]) == 0
    # No time at all: one step a session, the last of which ends it.
    for step in range(1, SMALL["training"]["steps"] + 1):
        assert main([*command, str(run), "--time-limit", "0"]) == STOPPED
        said = capsys.readouterr().err
        assert f"stopped by the time limit after step {step} of 4" in said and "The same command resumes" in said
    assert main([*command, str(run), "--time-limit", "0"]) == 0
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert [row["step"] for row in read_json_lines(run / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_a_job_waits_for_its_predecessor_to_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    held, gone = threading.Event(), []

    def predecessor() -> None:
        with checkpoint.run_lock(tmp_path):
            held.set()
            time.sleep(0.7)
            gone.append(True)

    thread = threading.Thread(target=predecessor)
    thread.start()
    held.wait()
    with checkpoint.run_lock(tmp_path):
        assert gone
        monkeypatch.setattr(checkpoint, "WAIT_IN_JOBS", 0.2)
        with pytest.raises(UserError, match="another process is training here"), checkpoint.run_lock(tmp_path):
            pass
    thread.join()
