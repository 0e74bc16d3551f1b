"""Progress of long loops: one line that is updated in terminals, occasional lines in logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 15.0  # in a log


class Progress(Iterable[T]):
    """Shows a line with ``note`` while it is iterated over, or, as a context, after each `advance`.

    ``first`` of ``total`` items are already done.
    """

    def __init__(self, items: Iterable[T], label: str, total: int, first: int = 0, silent: bool = False) -> None:
        self.items, self.label, self.total, self.done, self.silent = items, label, total, first, silent
        self.note = ""

    def __iter__(self) -> Iterator[T]:
        with self:
            for item in self.items:
                yield item
                self.advance(self.note)

    def __enter__(self) -> Progress[T]:
        self._started = self._printed = time.monotonic()
        self._bar = None if self.silent or not sys.stderr.isatty() else _bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, note: str = "") -> None:
        """Another item is done."""
        self.done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, note=note)
            return
        now = time.monotonic()
        if not self.silent and (now - self._printed >= SECONDS_BETWEEN_LINES or self.done == self.total):
            self._printed, seconds, more = now, now - self._started, f", {note}" if note else ""
            print(f"{self.label}: {self.done} of {self.total}, {seconds:.0f} s{more}", file=sys.stderr, flush=True)


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
