"""Progress of long loops: one line that is updated in terminals, occasional lines in logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

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
