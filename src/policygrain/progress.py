"""Progress of long loops and of workflows: one line that is updated in terminals, occasional lines in logs."""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 15.0  # in a log


class Progress(Iterable[T]):
    """Iterates over ``items`` and shows the progress with ``note``; ``first`` of ``total`` items are already done."""

    def __init__(self, items: Iterable[T], label: str, total: int, first: int = 0, silent: bool = False) -> None:
        self.items, self.label, self.total, self.first, self.silent = items, label, total, first, silent
        self.note = ""

    def __iter__(self) -> Iterator[T]:
        if self.silent:
            yield from self.items
        elif sys.stderr.isatty() and (bar := _bar()) is not None:
            with bar:
                task = bar.add_task(self.label, total=self.total, completed=self.first, note="")
                for item in self.items:
                    yield item
                    bar.update(task, advance=1, note=self.note)
        else:
            yield from self._with_lines()

    def _with_lines(self) -> Iterator[T]:
        started = printed = time.monotonic()
        for done, item in enumerate(self.items, start=self.first + 1):
            yield item
            now = time.monotonic()
            if now - printed >= SECONDS_BETWEEN_LINES or done == self.total:
                printed = now
                note = f", {self.note}" if self.note else ""
                print(f"{self.label}: {done} of {self.total}, {now - started:.0f} s{note}", file=sys.stderr, flush=True)


def _bar() -> Any:
    """A progress bar with the remaining time; None if rich is not installed, as beside another trainer."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    columns = (progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    note = progress.TextColumn("{task.fields[note]}", markup=False)
    return progress.Progress(*progress.Progress.get_default_columns()[:2], *columns, note, console=Console(stderr=True))


class WorkflowProgress(logging.Handler):
    """Follows Snakemake's log and shows one line: the last of a terminal, or now and then in a log file.

    A log file also gets a line when the first job of a rule starts.

    ``left()`` returns rule → number of jobs that have not ended, running ones included. ``local``: rules whose jobs
    take seconds; they are left out of the estimate of the remaining time until one has ended.
    """

    def __init__(
        self, left: Callable[[], Mapping[str, int]], local: set[str] | frozenset[str], stream: TextIO = sys.stderr
    ) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        super().__init__()
        self._count_left, self._local, self._stream = left, local, stream
        self.left: dict[str, int] = {}
        self.done = 0
        self._running: dict[int, tuple[str, float]] = {}  # job → its rule, and when it was started
        self._stages: set[str] = set()  # that have begun
        self._most = 1  # jobs that ran at the same time
        self._took: dict[str, list[float]] = defaultdict(list)
        self._started, self._printed, self._ended = time.monotonic(), 0.0, False
        self._live = Live(
            get_renderable=lambda: Text(self.line(), no_wrap=True, overflow="ellipsis"),
            console=Console(file=stream),
            refresh_per_second=1,
            transient=True,
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Note that jobs are started or have ended, and show the line."""
        event, now, new_stage = getattr(record, "event", None), time.monotonic(), False
        if event == "job_started":
            self.left = dict(self._count_left())
        elif event == "job_info":
            rule = str(record.rule_name)  # type: ignore[attr-defined]
            new_stage = rule not in self._stages
            self._stages.add(rule)
            self._running[record.jobid] = rule, now  # type: ignore[attr-defined]
            self._most = max(self._most, len(self._running))
        elif event == "job_finished" and (job := self._running.pop(record.job_id, None)):  # type: ignore[attr-defined]
            rule, started = job
            self._took[rule].append(now - started)
            self.left[rule] = max(0, self.left.get(rule, 0) - 1)
            self.done += 1
        elif event == "job_error":
            self._running.pop(record.jobid, None)  # type: ignore[attr-defined]
        if not self.left or self._ended:
            return
        if self._live.console.is_terminal:
            self._live.start()
        elif new_stage or (self._running and now - self._printed >= self._pause(now)):
            self._printed = now
            print(f"{time.strftime('%H:%M:%S')} {self.line()}", file=self._stream, flush=True)

    def _pause(self, now: float) -> float:
        """Seconds between two lines of one stage."""
        return max(2 * SECONDS_BETWEEN_LINES, 0.02 * (now - self._started))

    def lets_pass(self, record: logging.LogRecord) -> bool:
        """Whether Snakemake shows ``record`` as well; if so, the progress line is removed until the next event."""
        shown = record.levelno >= logging.WARNING or self._ended
        if shown:
            self._live.stop()
        return shown

    def line(self) -> str:
        """The running stages, the number of jobs by state, and an estimate of the remaining time."""
        left, running = sum(self.left.values()), list(self._running.values())
        stages = ", ".join(dict.fromkeys(rule for rule, _ in running)) or "waiting"
        waiting = max(0, left - len(running))
        count = f"{self.done} of {self.done + left} jobs done, {len(running)} running, {waiting} waiting"
        return f"{stages}: {count}; {_span(time.monotonic() - self._started)} so far{self._rest()}"

    def _rest(self) -> str:
        means = {rule: statistics.fmean(took) for rule, took in list(self._took.items()) if took}
        left = {rule: count for rule, count in self.left.items() if count}
        if not set(left) & set(means):
            return ""
        now = time.monotonic()
        seconds = sum(count * means.get(rule, 0.0) for rule, count in left.items())
        seconds -= sum(min(now - started, means.get(rule, 0.0)) for rule, started in list(self._running.values()))
        qualifier = "more than " if set(left) - set(means) - self._local else "about "
        return f", {qualifier}{_span(seconds / self._most)} left"

    def close(self) -> None:
        """Remove the progress line."""
        self._ended = True
        self._live.stop()
        super().close()


def _span(seconds: float) -> str:
    """`3 hours`."""
    from humanfriendly import format_timespan

    return str(format_timespan(round(max(0.0, seconds)), max_units=1))
