"""The line that says how far a workflow is."""

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


def tell(progress: WorkflowProgress, event: str | None, level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    """Give the progress a record of Snakemake's log."""
    record = logging.LogRecord("snakemake", level, "", 0, "message", (), None)
    vars(record).update(fields, event=event)
    progress.handle(record)
    return record


def run(progress: WorkflowProgress, **jobs: str) -> None:
    """Start jobs: `_1="train"`."""
    tell(progress, "job_started", jobs=[int(number[1:]) for number in jobs])
    for number, rule in jobs.items():
        tell(progress, "job_info", jobid=int(number[1:]), rule_name=rule)


def test_stages_counts_and_the_time_that_is_left(monkeypatch):
    """The time left is that of jobs of the same rules."""
    clock, left = SimpleNamespace(now=1000.0, strftime=time.strftime), {"start_model": 2, "train": 4, "figure": 9}
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    progress = WorkflowProgress(lambda: left, frozenset({"figure"}), Terminal())
    run(progress, _1="start_model", _2="start_model")
    assert progress.line().startswith("start_model: 0 of 15 jobs done, 2 running, 13 waiting; 0 seconds so far")
    clock.now += 60
    tell(progress, "job_finished", job_id=1)
    assert "1 of 15 jobs done, 1 running, 13 waiting; 1 minute so far, more than" in progress.line()
    tell(progress, "job_finished", job_id=2)
    left |= {"start_model": 0}
    run(progress, _3="train", _4="train")
    clock.now += 600
    tell(progress, "job_finished", job_id=3)
    left |= {"train": 3}
    run(progress, _5="train")
    # Job 4 ends any moment; 600 s each of job 5 and one that waits, on two cores.
    assert progress.line().startswith("train: 3 of 15 jobs done, 2 running, 10 waiting; 11 minutes so far")
    assert progress.line().endswith(", about 10 minutes left")
    error = tell(progress, "job_error", logging.ERROR, jobid=4)
    assert "1 running, 11 waiting" in progress.line()
    # Warnings and errors pass; paragraphs do not until the end.
    job = tell(progress, "job_info", jobid=1, rule_name="train")
    assert progress.lets_pass(error) and not progress.lets_pass(job)
    progress.close()
    assert progress.lets_pass(job)


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_terminal_has_one_line_and_a_file_whole_lines(stream):
    shown = WorkflowProgress(lambda: {"train": 2}, frozenset(), stream)
    run(shown, _1="train")
    end = time.monotonic() + 20
    while "train: 0 of 2 jobs done" not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.1)
    shown.close()
    text = stream.getvalue()
    erased = text.endswith("\033[1A\033[2K") if stream.isatty() else "\r" not in text and text.endswith("\n")
    assert text.count("\n") == 1 and erased
