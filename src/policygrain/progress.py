"""Progress of long loops and of workflows: a line that is updated in terminals, lines now and then in logs."""

from __future__ import annotations

import logging
import shutil
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 15.0  # in a log


class Progress(Iterable[T]):
    """Iterate over ``items`` and show progress with ``note``; ``first`` of ``total`` items are already done."""

    def __init__(self, items: Iterable[T], label: str, total: int, first: int = 0, silent: bool = False) -> None:
        self.items, self.label, self.total, self.first, self.silent = items, label, total, first, silent
        self.note = ""

    def __iter__(self) -> Iterator[T]:
        if self.silent:
            yield from self.items
            return
        if sys.stderr.isatty() and (tqdm := _tqdm()) is not None:
            with tqdm(self.items, desc=self.label, total=self.total, initial=self.first) as bar:
                for item in bar:
                    yield item
                    bar.set_postfix_str(self.note, refresh=False)
            return
        started = printed = time.monotonic()
        for done, item in enumerate(self.items, start=self.first + 1):
            yield item
            now = time.monotonic()
            if now - printed >= SECONDS_BETWEEN_LINES or done == self.total:
                printed = now
                note = f", {self.note}" if self.note else ""
                print(f"{self.label}: {done} of {self.total}, {now - started:.0f} s{note}", file=sys.stderr, flush=True)


def _tqdm() -> Any:
    """tqdm, or None where it is not installed (inside another trainer)."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm


class WorkflowProgress(logging.Handler):
    """Follows Snakemake's log; ``left()`` counts the jobs that have not ended by rule, running ones included.

    ``local``: rules of jobs that take seconds, whose time is not counted before one has ended.
    """

    def __init__(
        self, left: Callable[[], Mapping[str, int]], local: set[str] | frozenset[str], stream: TextIO = sys.stderr
    ) -> None:
        super().__init__()
        self._count_left, self._local, self._stream = left, local, stream
        self._terminal = stream.isatty()
        self.left: dict[str, int] = {}
        self.done = 0
        self._running: dict[int, tuple[str, float]] = {}  # job → its rule, when it was started
        self._most = 1  # jobs that ran at the same time
        self._took: dict[str, list[float]] = defaultdict(list)
        self._started, self._printed = time.monotonic(), 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Note that jobs are started or have ended."""
        event, now = getattr(record, "event", None), time.monotonic()
        if event == "job_started":
            self.left = dict(self._count_left())
        elif event == "job_info":
            self._running[record.jobid] = record.rule_name, now  # type: ignore[attr-defined]
            self._most = max(self._most, len(self._running))
        elif event == "job_finished" and (job := self._running.pop(record.job_id, None)):  # type: ignore[attr-defined]
            rule, started = job
            self._took[rule].append(now - started)
            self.left[rule] = max(0, self.left.get(rule, 0) - 1)
            self.done += 1
        elif event == "job_error":
            self._running.pop(record.jobid, None)  # type: ignore[attr-defined]

    def lets_pass(self, record: logging.LogRecord) -> bool:
        """Whether Snakemake shows ``record`` as well; the line is taken away for it."""
        if record.levelno < logging.WARNING and not self._ended.is_set():
            return False
        self._clear()
        return True

    def line(self) -> str:
        """Stages that run, jobs by state, and about how long the rest takes."""
        left, running = sum(self.left.values()), len(self._running)
        stages = ", ".join(dict.fromkeys(rule for rule, _ in self._running.values())) or "waiting"
        count = f"{self.done} of {self.done + left} jobs done, {running} running, {max(0, left - running)} waiting"
        return f"{stages}: {count}; {duration(time.monotonic() - self._started)} so far{self._rest()}"

    def _rest(self) -> str:
        unknown = [rule for rule, count in self.left.items() if count and not self._took[rule]]
        means = {rule: statistics.fmean(took) for rule, took in self._took.items() if took}
        now = time.monotonic()
        seconds = sum(count * means.get(rule, 0.0) for rule, count in self.left.items())
        seconds -= sum(min(now - started, means.get(rule, 0.0)) for rule, started in self._running.values())
        if not means or not any(self.left.get(rule) for rule in means):
            return ""
        qualifier = "more than " if set(unknown) - self._local else "about "
        return f", {qualifier}{duration(seconds / self._most)} left"

    def _tick(self) -> None:
        while not self._ended.wait(1.0):
            now = time.monotonic()
            with self.lock:  # type: ignore[union-attr]
                if not self.left:
                    continue
                if self._terminal:
                    width = shutil.get_terminal_size().columns
                    self._stream.write(f"\r\033[K{self.line()[: width - 1]}")
                elif now - self._printed >= max(2 * SECONDS_BETWEEN_LINES, 0.02 * (now - self._started)):
                    self._printed = now
                    self._stream.write(f"{time.strftime('%H:%M:%S')} {self.line()}\n")
                self._stream.flush()

    def _clear(self) -> None:
        if self._terminal and not self._ended.is_set():
            self._stream.write("\r\033[K")
            self._stream.flush()

    def close(self) -> None:
        """Take the line away."""
        self._clear()
        self._ended.set()
        super().close()


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`, `4 days 2 h`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"
