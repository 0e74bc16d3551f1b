"""Progress of long loops: a bar in terminals, lines of text in logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 15.0


class Progress(Iterable[T]):
    """Iterate over ``items`` and show progress with ``note``; ``first`` of ``total`` items are already done."""

    def __init__(self, items: Iterable[T], label: str, total: int, first: int = 0, silent: bool = False) -> None:
        self.items, self.label, self.total, self.first, self.silent = items, label, total, first, silent
        self.note = ""

    def __iter__(self) -> Iterator[T]:
        if self.silent:
            yield from self.items
            return
        if sys.stderr.isatty():
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
