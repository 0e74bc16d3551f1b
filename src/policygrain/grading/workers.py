"""Grading in worker processes with limits of time and memory for each answer.

They are forks of a process that has imported what they need (preload.py): a new one takes milliseconds, and copies
neither the memory of this process nor the locks of its threads.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from typing import Any
from unittest.mock import patch

from ..errors import UserError
from .grader import UNREADABLE_GOLD, Options, UnreadableGold

Task = tuple[str, str, Options]  # gold, answer, how to compare
WALL_CLOCK_FACTOR = 5  # by the clock an answer may take this many times the limit, which is on processor time
GRACE = 60.0  # seconds beyond that for a worker to start and to answer
ATTEMPTS = 2  # for an answer whose worker died, perhaps for another reason
ANSWERS_PER_WORKER = 2_000  # sympy's caches grow
LARGEST_FILE = 16 * 2**20  # bytes


class Pool:
    """``workers`` processes with at most ``seconds`` of processor time per answer and ``memory`` bytes each.

    Default: those that this process may use, shared among the processes of a run (LOCAL_WORLD_SIZE, of torchrun).
    ``kind``: the module of this folder that grades an answer; ``fresh``: each answer gets a process of its own.
    """

    def __init__(
        self, workers: int | None, seconds: float, memory: int, kind: str = "symbolic", fresh: bool = False
    ) -> None:
        share = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.workers = workers or max(1, share)
        self.seconds, self.memory, self.kind, self.fresh = seconds, memory, kind, fresh
        self._pool: Any = None

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """For each task an outcome, or UNREADABLE_GOLD. Raises UserError if workers cannot be kept running."""
        outcomes: dict[int, str] = {}
        for attempt in range(ATTEMPTS):
            try:
                futures = {i: self._schedule(task) for i, task in enumerate(tasks) if i not in outcomes}
                outcomes |= {i: outcome for i, future in futures.items() if (outcome := self._outcome(future))}
            except (OSError, EOFError, RuntimeError) as error:
                self.close()
                if attempt == ATTEMPTS - 1:
                    raise UserError(
                        f"grading ({self.kind}): its workers failed {ATTEMPTS} times ({error!r}). Often the machine is "
                        "short of memory or of processes."
                    ) from error
            except BaseException:
                self.close()
                raise
        return [outcomes.get(i, "error") for i in range(len(tasks))]

    def _schedule(self, task: Task) -> Any:
        if self._pool is None:
            from pebble import CONSTS, ProcessPool

            context = _Context()
            # Workers of another kind that are started later import its module themselves.
            context.set_forkserver_preload([f"{__package__}.{self.kind}", f"{__package__}.preload"])
            with patch.dict(os.environ, PYTHONHASHSEED="0"):  # sets have the same order in every run
                ensure_running()
            if self.fresh:
                CONSTS.sleep_unit = 0.01  # seconds until a process that has ended is replaced
            answers = 1 if self.fresh else ANSWERS_PER_WORKER
            self._pool = ProcessPool(self.workers, answers, _start, (self.kind, self.memory), context)
        limit = WALL_CLOCK_FACTOR * self.seconds + 1
        return self._pool.schedule(_grade, (self.kind, self.seconds, task), timeout=limit)

    def _outcome(self, future: Any) -> str | None:
        """The outcome of a task; None if its worker died. OSError if it does not answer."""
        from pebble import ProcessExpired

        try:
            return future.result(WALL_CLOCK_FACTOR * self.seconds + GRACE)
        except ProcessExpired as expired:
            return "timeout" if expired.exitcode == -signal.SIGPROF else None
        except TimeoutError:
            if future.done():
                return "timeout"
            raise

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()


class _Context(ForkServerContext):
    """Starts processes that do not import the main script, which may lack `if __name__ == "__main__"`."""

    class Process(ForkServerProcess):
        def start(self) -> None:
            with patch.object(sys.modules["__main__"], "__spec__", ModuleSpec("__main__", None)):
                super().start()


def _start(kind: str, memory: int) -> None:
    importlib.import_module(f".{kind}", __package__)  # here, since the time limit is on answers
    for what, most in (("AS", memory), ("CORE", 0), ("FSIZE", LARGEST_FILE)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (most, most))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends a worker in C code, too


def _grade(kind: str, seconds: float, task: Task) -> str:
    """In a worker, which ends at a limit, and at an error, since its caches may be inconsistent."""
    grader = importlib.import_module(f".{kind}", __package__)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return grader.grade_pair(*task)
    except UnreadableGold:
        return UNREADABLE_GOLD
    except RecursionError:
        return "unparsable"
    except BaseException:
        os._exit(1)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
