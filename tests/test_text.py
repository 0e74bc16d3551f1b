"""Texts: aligned columns, Markdown tables, one merge for studies and methods, and the line of progress."""

import io
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from policygrain import progress as module
from policygrain.merging import merge
from policygrain.progress import WorkflowProgress
from policygrain.text import columns, markdown_table

MERGED = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())["merged"]
WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)
TABLES = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(WORDS, min_size=n, max_size=n),
        st.lists(st.lists(WORDS, min_size=n, max_size=n), max_size=5),
        st.text("lr", max_size=n),
    )
)


@given(TABLES)
def test_every_cell_is_in_its_column_and_markdown_is_read_back(table):
    """CommonMark with tables finds as many cells as there are, whatever pipes they hold."""
    header, rows, align = table
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    starts = [sum(widths[:i]) + 2 * i for i in range(len(widths))]
    for line, cells in zip(columns(rows, header, align), [header, *rows], strict=True):
        for cell, start, width in zip(cells, starts, widths, strict=True):
            assert line[start : start + width].strip() == cell
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown_table(header, rows, align))
    kinds = [token.type for token in tokens]
    assert kinds.count("th_open") == len(header) and kinds.count("td_open") == len(header) * len(rows)
    right = [token for token in tokens if token.type == "th_open" and "right" in str(token.attrs.get("style", ""))]
    assert len(right) == (align or "l").ljust(len(header), (align or "l")[-1])[: len(header)].count("r")


@pytest.mark.parametrize(("below", "above", "merged"), MERGED)
def test_merging(below, above, merged):
    before = json.dumps([below, above])
    assert merge(below, above) == merged == merge(merged, above) and merge(below, {}) == below
    assert json.dumps([below, above]) == before


def test_keys_that_are_replaced_as_a_whole():
    below, above = {"x": {"a": 1}, "y": {"a": 1}}, {"x": {"b": 2}, "y": {"b": 2}}
    assert merge(below, above, replace=("x",)) == {"x": {"b": 2}, "y": {"a": 1, "b": 2}}


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
