"""The processes that grade: limits, replacement, and a helper that fails."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.grading import MathGrader, workers

from ..support.hostile import ENDLESS

OTHERS = ["a+3-2", "a+4"]


def children(grader: MathGrader) -> list[int]:
    assert grader.pool.helper is not None
    pid = grader.pool.helper.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def during(grader: MathGrader, act: Callable[[int], Any], times: int) -> list[str]:
    """The outcomes of an endless answer and two others, while something is done to the first ``times`` children."""
    grader.compare(["a+1"], ["1+a"])

    def loop() -> None:
        done: set[int] = set()
        while len(done) < times:
            time.sleep(0.2)  # the others take less
            for pid in set(children(grader)) - done:
                act(pid)
                done.add(pid)

    thread = threading.Thread(target=loop)
    thread.start()
    outcomes = grader.compare(["a+1"] * 3, [ENDLESS, *OTHERS])
    thread.join()
    return list(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(("times", "outcome"), [(1, "timeout"), (2, "error")])
def test_a_killed_child_is_replaced_once_and_no_answer_is_lost(times: int, outcome: str) -> None:
    with MathGrader(workers=1, seconds=2) as grader:
        found = during(grader, lambda pid: os.kill(pid, signal.SIGKILL), times)
        assert found == [outcome, "correct", "incorrect"]


@pytest.mark.slow
def test_memory_is_limited() -> None:
    limits = []
    with MathGrader(workers=1, seconds=1, memory=2**29) as grader:
        during(grader, lambda pid: limits.append(resource.prlimit(pid, resource.RLIMIT_AS)), 1)
    assert limits == [(2**29, 2**29)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_fails_between_calls_is_replaced(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(workers, "REPLY_TIMEOUT", 0.0)
    with MathGrader(workers=1, seconds=0.3) as grader:
        assert grader.compare(["a+1"], ["1+a"]) == ["correct"]
        assert grader.pool.helper is not None
        first = grader.pool.helper
        first.send_signal(number)
        monkeypatch.undo()
        assert grader.compare(["a+1"], ["a+3-2"]) == ["correct"]
        assert grader.pool.helper is not first and first.returncode == -signal.SIGKILL
    assert grader.pool.helper is None
    assert grader.compare(["1"], ["2"]) == ["incorrect"]  # numbers need no process
    assert grader.pool.helper is None


def signalled(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> list[int]:
    """Send a signal to the first helpers at once after their start; returns their process ids."""
    started: list[int] = []
    original = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = original(*arguments, **options)
        started.append(process.pid)
        fails = len(started) <= times
        if fails:
            os.kill(process.pid, number)
        monkeypatch.setattr(workers, "START_TIMEOUT", 0.5 if fails else 120.0)
        return process

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    return started


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_always_fails_is_one_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    started = signalled(monkeypatch, number, 99)
    with MathGrader(workers=1) as grader, pytest.raises(UserError, match="failed 2 times"):
        grader.compare(["a+1"], ["1+a"])
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_helper_that_fails_at_its_start_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = signalled(monkeypatch, signal.SIGSTOP, 1)
    with MathGrader(workers=1) as grader:
        assert grader.compare(["a+1"], ["1+a"]) == ["correct"]
    assert len(started) == 2


@pytest.mark.slow
def test_nothing_is_left_when_the_process_that_asked_is_killed() -> None:
    code = "from policygrain.grading import MathGrader\ngrader = MathGrader(workers=1, seconds=60)\n"
    code += "grader.compare(['a+1'], ['1+a'])\nprint(grader.pool.helper.pid, flush=True)\n"
    code += f"grader.compare(['a+1'], [{ENDLESS!r}])"
    asking = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    helper = int(asking.stdout.readline())
    time.sleep(1.0)
    asking.kill()
    asking.wait()
    asking.stdout.close()
    deadline = time.monotonic() + 20
    while _runs(helper) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(helper)


def _runs(session: int) -> bool:
    """Whether a process of a session runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            return True
    return False
