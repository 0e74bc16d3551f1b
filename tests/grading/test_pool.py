"""The worker processes of the math grader: limits, replacement, and a forkserver that fails."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.grading import MathGrader, pool
from policygrain.grading.pool import Task, Worker

from ..support.hostile import ENDLESS


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_answers_are_not_lost() -> None:
    with MathGrader(workers=1, seconds=1) as grader:
        assert grader.compare(["a+1"], ["1+a"]) == ["correct"]
        first = grader.pool.idle[0].pid
        os.kill(first, signal.SIGKILL)
        assert grader.compare(["a+1"] * 3, ["a+1+0", "a+2-1", "a"]) == ["correct", "correct", "incorrect"]
        # One that dies while it works: the answer it was at is tried again.
        threading.Timer(0.3, lambda: os.kill(grader.pool.idle[0].pid if grader.pool.idle else _only(grader), 9)).start()
        assert grader.compare(["a+1"] * 3, [ENDLESS, "a+3-2", "a+4"]) == ["timeout", "correct", "incorrect"]
        assert grader.pool.idle[0].pid != first


def _only(grader: MathGrader) -> int:
    return next(iter(grader.pool.busy.values())).pid


@pytest.mark.slow
def test_a_killed_forkserver_is_replaced() -> None:
    with MathGrader(workers=1) as grader:
        assert grader.compare(["a+1"], ["1+a"]) == ["correct"]
        assert grader.pool.forkserver is not None
        grader.pool.forkserver.kill()
        os.kill(grader.pool.idle[0].pid, signal.SIGKILL)
        assert grader.compare(["a+1"], ["a+3-2"]) == ["correct"]
    assert grader.pool.forkserver is None
    assert grader.compare(["1"], ["2"]) == ["incorrect"]  # numbers need no process
    assert grader.pool.forkserver is None


def signalled(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> list[int]:
    """Send a signal to the first forkservers at once after their start; returns their process ids."""
    started: list[int] = []
    original = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = original(*arguments, **options)
        started.append(process.pid)
        fails = len(started) <= times
        if fails:
            os.kill(process.pid, number)
        monkeypatch.setattr(pool, "START_TIMEOUT", 0.5 if fails else 120.0)
        return process

    monkeypatch.setattr(pool.subprocess, "Popen", start)
    return started


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_forkserver_that_fails_at_its_start_is_replaced_once(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    started = signalled(monkeypatch, number, 1)
    with MathGrader(workers=1) as grader:
        assert grader.compare(["a+1"], ["1+a"]) == ["correct"]
    assert len(started) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_forkserver_that_always_fails_is_one_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    started = signalled(monkeypatch, number, 99)
    with MathGrader(workers=1) as grader, pytest.raises(UserError, match="failed 2 times"):
        grader.compare(["a+1"], ["1+a"])
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_stopped_forkserver_is_replaced_and_its_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REPLY_TIMEOUT", 0.5)
    with MathGrader(workers=2) as grader:
        assert grader.compare(["a+1"] * 2, ["1+a", "a+2-1"]) == ["correct", "correct"]
        assert grader.pool.forkserver is not None
        workers = [worker.pid for worker in grader.pool.idle]
        os.kill(grader.pool.forkserver.pid, signal.SIGSTOP)
        os.kill(workers[0], signal.SIGKILL)
        assert grader.compare(["a+1"] * 4, ["a+3-2", "a+4-3", "a+5-4", "a"]) == ["correct"] * 3 + ["incorrect"]
        deadline = time.monotonic() + 20
        while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)


def test_memory_is_limited_and_workers_that_have_grown_are_replaced() -> None:
    answers = [f"x+{i}" for i in range(200)]
    with MathGrader(workers=1, seconds=2, memory=2**28) as grader:
        limits = set()
        for part in (answers[i : i + 20] for i in range(0, 200, 20)):
            assert grader.compare(["x+7+0"] * 20, part).count("correct") == ("x+7" in part)
            with contextlib.suppress(ProcessLookupError):
                limits |= {resource.prlimit(w.pid, resource.RLIMIT_AS) for w in grader.pool.idle}
    assert limits <= {(2**28, 2**28)}


@pytest.mark.slow
def test_an_answer_that_ends_its_worker_twice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with MathGrader(workers=1, seconds=3) as grader:
        assign = grader.pool._assign

        def assign_and_kill(worker: Worker, indices: deque[int], tasks: Sequence[Task]) -> None:
            assign(worker, indices, tasks)
            if tasks[indices[0]][1] == ENDLESS:
                os.kill(worker.pid, signal.SIGKILL)

        monkeypatch.setattr(grader.pool, "_assign", assign_and_kill)
        assert grader.compare(["a+1"] * 3, [ENDLESS, "a+3-2", "a+4"]) == ["error", "correct", "incorrect"]
        monkeypatch.undo()
        assert grader.compare(["a+1"], [ENDLESS]) == ["timeout"]  # errors are not remembered
