"""Worker processes: limits of time and memory, answers that take all of them, and workers that die."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policygrain.grading import MathGrader, NumericGrader
from policygrain.grading.workers import Pool

from . import items

# The first takes all the time that it is given.
HOSTILE = json.loads(Path(__file__).with_name("hostile_answers.json").read_text())
ENDLESS = HOSTILE[0]


@pytest.fixture(scope="module")
def hasty():
    """Little time and memory, so that what exceeds them does so soon."""
    with MathGrader(workers=2, seconds=0.5, memory=2**29) as opened:
        yield opened


@pytest.mark.slow
def test_hostile_answers_get_an_outcome_and_change_nothing(hasty, tmp_path, monkeypatch):
    """Each has an outcome in time, none is executed, none is right; those between them are graded as ever."""
    monkeypatch.chdir(tmp_path)
    good = ["\\frac{\\sqrt{8}}{2}"] * len(HOSTILE)
    answers = [a for pair in zip(HOSTILE, good, strict=True) for a in pair]
    begin = time.monotonic()
    outcomes = hasty.compare(items("\\sqrt{2}", *answers))
    assert time.monotonic() - begin < 120, "a limit was not kept"
    assert outcomes[1::2] == ["correct"] * len(HOSTILE)
    assert set(outcomes[::2]) <= {"incorrect", "unparsable", "timeout", "error"}
    assert "timeout" in outcomes
    assert not list(tmp_path.iterdir())


PIECES = [*"0123456789xyz+-*/^_{}()[],.!= $", "\\frac", "\\sqrt", "\\pm", "\\text{", "\\left("]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES)).map("".join)), max_size=6))
def test_any_text_gets_an_outcome(hasty, answers):
    outcomes = hasty.compare(items("x", *answers) + items("1", *answers))
    assert len(outcomes) == 2 * len(answers)
    assert set(outcomes) <= {"correct", "incorrect", "unparsable", "timeout"}
    boxed = [f"{answer}\\boxed{{1}}" for answer in answers]
    assert NumericGrader().grade(items("1", *boxed, *answers))[: len(answers)] == ["correct"] * len(answers)


def workers(pool: Pool) -> list[int]:
    """Process ids."""
    return [*pool._pool._pool_manager.worker_manager.workers]


@pytest.mark.slow
@pytest.mark.parametrize(("times", "outcome"), [(1, "timeout"), (2, "error")])
def test_a_killed_worker_is_replaced_once_and_no_answer_is_lost(times, outcome):
    with MathGrader(workers=1, seconds=5) as grader:
        assert grader.compare(items("a+1", "1+a")) == ["correct"]

        def kill() -> None:
            """Those that work on the endless answer: the others, and the start of a worker, take much less."""
            killed: set[int] = set()
            while len(killed) < times:
                time.sleep(0.05)
                for pid in {*workers(grader.pool)} - killed:
                    with suppress(psutil.NoSuchProcess):
                        if psutil.Process(pid).cpu_times().user > 2:
                            os.kill(pid, signal.SIGKILL)
                            killed.add(pid)

        thread = threading.Thread(target=kill)
        thread.start()
        assert grader.compare(items("a+1", ENDLESS, "a+3-2", "a+4")) == [outcome, "correct", "incorrect"]
        thread.join()


KILLED = [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGSTOP, False)]


@pytest.mark.parametrize(("number", "whole"), [*KILLED, (signal.SIGUSR1, True), (signal.SIGTERM, True)])
def test_workers_that_fail_between_calls_are_replaced(number, whole):
    """A scheduler signals to the whole job, every process of it; the one that workers are forked from ignores this."""
    with MathGrader(workers=2, seconds=0.5) as grader:
        assert grader.compare(items("a+1", "1+a")) == ["correct"]
        for process in (_forkserver._forkserver_pid, *workers(grader.pool)) if whole else workers(grader.pool)[:1]:
            os.kill(process, number)
        assert grader.compare(items("a+1", *(f"a+{i}" for i in range(20)))).count("correct") == 1
    assert grader.compare(items("1", "2")) == ["incorrect"]  # numbers need no process
    assert grader.pool._pool is None


@pytest.mark.parametrize(
    ("executable", "says"),
    [(sys.executable, "['correct']\n"), ("/bin/false", "UserError: grading (symbolic): its workers failed 2 times")],
)
def test_in_a_script_workers_start_without_its_main_part_or_all_fail_with_one_error(executable, says, tmp_path):
    """It has no `if __name__ == "__main__"`, which processes that import it would need."""
    code = f"import multiprocessing; multiprocessing.set_executable({executable!r})\n"
    code += "from policygrain.grading import *; print(MathGrader(workers=1).compare([Item('a+1', '1+a')]))"
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, str(tmp_path / "script.py")]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    assert says in ran.stdout


@pytest.mark.slow
def test_nothing_is_left_when_the_process_that_asked_is_killed():
    code = f"""
from policygrain.grading import Item, MathGrader
grader = MathGrader(workers=1, seconds=2)
grader.compare([Item('a+1', '1+a')])
print(*grader.pool._pool._pool_manager.worker_manager.workers, flush=True)
grader.compare([Item('a+1', {ENDLESS!r})])
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as asking:
        worker = Path("/proc") / asking.stdout.readline().strip()
        time.sleep(0.5)
        asking.kill()
    deadline = time.monotonic() + 20
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.exists()
