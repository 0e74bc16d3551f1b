"""The line that says how far a workflow is."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from policygrain import progress as module
from policygrain.progress import WorkflowProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """What `time` gives the progress: a time that the test sets."""

    now = 1000.0
    strftime = staticmethod(time.strftime)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def left() -> dict[str, int]:
    return {"start_model": 2, "train": 4, "figure": 9}


@pytest.fixture
def progress(clock: Clock, left: dict[str, int]) -> Iterator[WorkflowProgress]:
    shown = WorkflowProgress(lambda: left, frozenset({"figure"}), Terminal())
    yield shown
    shown.close()


def tell(progress: WorkflowProgress, event: str | None, level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    """Give the progress a record of Snakemake's log."""
    record = logging.LogRecord("snakemake", level, "", 0, "message", (), None)
    vars(record).update(fields, event=event)
    progress.handle(record)
    return record


def run(progress: WorkflowProgress, *jobs: tuple[int, str]) -> None:
    tell(progress, "job_started", jobs=[number for number, _ in jobs])
    for number, rule in jobs:
        tell(progress, "job_info", jobid=number, rule_name=rule)


def test_stages_counts_and_the_time_that_is_left(progress: WorkflowProgress, clock: Clock) -> None:
    run(progress, (1, "start_model"), (2, "start_model"))
    assert progress.line() == "start_model: 0 of 15 jobs done, 2 running, 13 waiting; 0 seconds so far"
    clock.now += 60
    tell(progress, "job_finished", job_id=1)
    # How long training takes is unknown.
    assert progress.line().endswith("1 running, 13 waiting; 1 minute so far, more than 0 seconds left")


def test_the_time_left_is_that_of_jobs_of_the_same_rules(
    progress: WorkflowProgress, clock: Clock, left: dict[str, int]
) -> None:
    run(progress, (1, "train"), (2, "train"))
    clock.now += 600
    left["start_model"] = 0
    tell(progress, "job_finished", job_id=1)
    left["train"] = 3
    run(progress, (3, "train"))
    # Job 2 ends any moment; 600 s each of job 3 and one that waits, on two cores.
    assert progress.line().startswith("train: 1 of 13 jobs done, 2 running, 10 waiting")
    assert progress.line().endswith("; 10 minutes so far, about 10 minutes left")


def test_a_failed_job_does_not_run_any_more(progress: WorkflowProgress) -> None:
    run(progress, (1, "train"))
    tell(progress, "job_error", logging.ERROR, jobid=1)
    assert progress.line().startswith("waiting: 0 of 15 jobs done, 0 running, 15 waiting")


def test_warnings_and_errors_pass_and_paragraphs_do_not_until_the_end(progress: WorkflowProgress) -> None:
    job = tell(progress, "job_info", jobid=1, rule_name="train")
    assert not progress.lets_pass(job)
    assert progress.lets_pass(tell(progress, "job_error", logging.ERROR, jobid=1))
    progress.close()
    assert progress.lets_pass(job)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_terminal_has_one_line_and_a_file_whole_lines(stream: io.StringIO) -> None:
    shown = WorkflowProgress(lambda: {"train": 2}, frozenset(), stream)
    run(shown, (1, "train"))
    end = time.monotonic() + 20
    while "train: 0 of 2 jobs done" not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.1)
    shown.close()
    text = stream.getvalue()
    if stream.isatty():
        assert text.count("\n") == 1 and text.endswith("\033[1A\033[2K"), "the line is erased"
    else:
        assert "\r" not in text and text.count("\n") == 1 and text.endswith("\n")
