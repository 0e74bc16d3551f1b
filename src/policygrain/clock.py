"""Measures the time of each phase of a training step."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds spent in each phase of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._started

    def report(self, tokens: int) -> dict[str, float]:
        """The values of `timings.jsonl` after a step of ``tokens`` tokens; `time` is in seconds since 1970."""
        total = sum(self.seconds.values())
        return {
            **{f"seconds/{phase}": seconds for phase, seconds in self.seconds.items()},
            "seconds/total": total,
            "tokens_per_second": tokens / max(total, 1e-9),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "time": time.time(),
        }
