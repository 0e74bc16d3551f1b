"""The line that says how far a workflow is."""

from __future__ import annotations

import io
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from policygrain import progress as module
from policygrain.progress import WorkflowProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Told:
    """A progress that is told of jobs by records of Snakemake's log, and a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, strftime=time.strftime)
        monkeypatch.setattr(module, "time", clock)
        self.left = {"start_model": 2, "train": 4, "figure": 9}
        self.progress = WorkflowProgress(lambda: self.left, frozenset({"figure"}), Terminal())


def tell(progress: WorkflowProgress, event: str | None, level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", level, "", 0, "message", (), None)
    vars(record).update(fields, event=event)
    progress.handle(record)
    return record


def run(progress: WorkflowProgress, *jobs: tuple[int, str]) -> None:
    tell(progress, "job_started", jobs=[number for number, _ in jobs])
    for number, rule in jobs:
        tell(progress, "job_info", jobid=number, rule_name=rule)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_stages_counts_and_the_time_that_is_left(told: Told) -> None:
    """The time left is that of jobs of the same rules."""
    run(told.progress, (1, "start_model"), (2, "start_model"))
    assert told.progress.line().startswith("start_model: 0 of 15 jobs done, 2 running, 13 waiting; 0 seconds so far")
    told.now += 60
    tell(told.progress, "job_finished", job_id=1)
    assert "1 of 15 jobs done, 1 running, 13 waiting; 1 minute so far, more than" in told.progress.line()
    tell(told.progress, "job_finished", job_id=2)
    told.left = {"train": 4, "figure": 9}
    run(told.progress, (3, "train"), (4, "train"))
    told.now += 600
    tell(told.progress, "job_finished", job_id=3)
    told.left = {"train": 3, "figure": 9}
    run(told.progress, (5, "train"))
    # Job 4 ends any moment; 600 s each of job 5 and one that waits, on two cores.
    assert (
        told.progress.line()
        == "train: 3 of 15 jobs done, 2 running, 10 waiting; 11 minutes so far, about 10 minutes left"
    )
    tell(told.progress, "job_error", logging.ERROR, jobid=4)
    assert "1 running, 11 waiting" in told.progress.line()


def test_warnings_and_errors_pass_and_paragraphs_do_not_until_the_end(told: Told) -> None:
    job = tell(told.progress, "job_info", jobid=1, rule_name="train")
    assert not told.progress.lets_pass(job)
    assert told.progress.lets_pass(tell(told.progress, "job_error", logging.ERROR, jobid=1))
    told.progress.close()
    assert told.progress.lets_pass(job)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_terminal_has_one_line_and_a_file_whole_lines(stream: io.StringIO) -> None:
    shown = WorkflowProgress(lambda: {"train": 2}, frozenset(), stream)
    run(shown, (1, "train"))
    end = time.monotonic() + 20
    while "train: 0 of 2 jobs done" not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.1)
    shown.close()
    text = stream.getvalue()
    assert text.count("\n") == 1
    if stream.isatty():
        assert text.endswith("\033[1A\033[2K"), "the line is erased"
    else:
        assert "\r" not in text and text.endswith("\n")
