"""Worker processes that judge answers, each answer within its own limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from .messages import END, FORK, OUT_OF_MEMORY, REPLY, REQUEST, RETIRED
from .numbers import Options

Task = tuple[str, str, Options]  # gold, answer, how to compare
CHUNK = 16  # answers in a message at most: few enough to spread, enough that a worker need not wait for the next
# The limit counts a worker's own processor time, so a busy machine does not change verdicts; this many times as long on
# the clock ends it in any case.
WALL_CLOCK_FACTOR = 5


START_TIMEOUT = 120.0  # seconds within which the forkserver answers; it takes three


class ForkserverDied(RuntimeError):
    """The process that workers are forked from does not answer; its own error is on standard error."""


@dataclass
class Worker:
    """A process, and the tasks it has been given and has not reported yet."""

    pid: int
    connection: Connection
    pending: deque[int] = field(default_factory=deque)
    since: float = 0.0  # when it was given its tasks or reported last


class Pool:
    """``workers`` processes of at most ``seconds`` of processor time an answer and ``memory`` bytes of address space.

    Processes are started when there is work for them and kept until ``close``.
    """

    def __init__(self, workers: int, seconds: float, memory: int) -> None:
        self.workers, self.seconds, self.memory = workers, seconds, memory
        self.idle: list[Worker] = []
        self.busy: dict[Connection, Worker] = {}
        self.forkserver: subprocess.Popen[bytes] | None = None
        self.control: socket.socket

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """What was found for each task: an outcome, or that its gold answer is unparsable."""
        try:
            return self._run(tasks)
        except ForkserverDied:
            return self._run(tasks)  # with a new one: a machine short of memory kills what it likes

    def _run(self, tasks: Sequence[Task]) -> list[str]:
        found = [""] * len(tasks)
        size = max(1, min(CHUNK, len(tasks) // (4 * self.workers)))
        queue = deque(deque(range(i, min(i + size, len(tasks)))) for i in range(0, len(tasks), size))
        tried: set[int] = set()  # tasks whose worker died, by no fault of theirs perhaps
        try:
            while queue or self.busy:
                while queue and (self.idle or len(self.busy) < self.workers):
                    self._give(self._take(), queue.popleft(), tasks)
                self._hear(found)
                for worker in [w for w in self.busy.values() if not w.pending]:
                    self.idle.append(self.busy.pop(worker.connection))
                for worker, ended in self._ended():
                    if ended == "retired":
                        queue.appendleft(worker.pending)
                        continue
                    first = worker.pending.popleft()
                    if ended != "died" or first in tried:
                        found[first] = "timeout" if ended == "timeout" else "error"
                    else:
                        tried.add(first)
                        queue.appendleft(deque([first]))
                    if worker.pending:
                        queue.append(worker.pending)
        except BaseException:
            self.close()  # answers that nobody waits for any more would be taken for those of the next call
            raise
        return found

    def close(self) -> None:
        """End all processes."""
        for worker in [*self.idle, *self.busy.values()]:
            self._end(worker)
        self.idle, self.busy = [], {}
        if self.forkserver is not None:
            self.control.close()
            self.forkserver.kill()
            self.forkserver.wait()
            self.forkserver = None

    def _give(self, worker: Worker, places: deque[int], tasks: Sequence[Task]) -> None:
        message = json.dumps([(gold, answer, astuple(options)) for gold, answer, options in (tasks[i] for i in places)])
        worker.pending, worker.since = places, time.monotonic()
        self.busy[worker.connection] = worker
        with contextlib.suppress(OSError):  # a worker that is gone is noticed when it is listened to
            worker.connection.send_bytes(message.encode())

    def _hear(self, found: list[str]) -> None:
        """Wait until a worker reports or is out of time, and note what all have to say."""
        last = min(w.since for w in self.busy.values()) + WALL_CLOCK_FACTOR * self.seconds
        for ready in wait([*self.busy], max(0.0, last - time.monotonic())):
            assert isinstance(ready, Connection)
            worker = self.busy[ready]
            try:
                while worker.pending and ready.poll():
                    found[worker.pending[0]] = ready.recv_bytes().decode()
                    worker.pending.popleft()
                    worker.since = time.monotonic()
            except (EOFError, OSError):
                worker.since = -float("inf")

    def _ended(self) -> list[tuple[Worker, str]]:
        """Workers that died or have to, ended, and what that says of the task they were at, if they read it at all."""
        now, ended = time.monotonic(), []
        for worker in [w for w in self.busy.values() if now - w.since > WALL_CLOCK_FACTOR * self.seconds]:
            del self.busy[worker.connection]
            status = self._end(worker)
            if worker.since != -float("inf") or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
                ended.append((worker, "timeout"))
            else:
                ended.append((worker, {RETIRED: "retired", OUT_OF_MEMORY: "error"}.get(status, "died")))
        return ended

    def _take(self) -> Worker:
        """An idle worker, or a new one."""
        if self.idle:
            return self.idle.pop()
        if self.forkserver is None:
            self._open()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [REQUEST.pack(FORK, 0)], [theirs.fileno()])
            except OSError as error:
                raise ForkserverDied from error
            return Worker(self._reply(), Connection(ours.detach()))

    def _end(self, worker: Worker) -> int:
        """How it ended, as in os.waitpid; by now if not before."""
        worker.connection.close()
        try:
            self.control.sendall(REQUEST.pack(END, worker.pid))
            return self._reply()
        except (OSError, ForkserverDied):
            return 0  # the forkserver is gone, and its forks with it once they have no one to report to

    def _open(self) -> None:
        """Start the forkserver, away from the terminal's signals, with the same package as ours."""
        self.control, theirs = socket.socketpair()
        self.control.settimeout(START_TIMEOUT)
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with theirs:
            self.forkserver = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"{__package__}.forkserver",
                    *map(str, (theirs.fileno(), self.seconds, self.memory)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            )
        self._reply()

    def _reply(self) -> int:
        reply = self.control.recv(REPLY.size)
        if not reply:
            raise RuntimeError("The process that workers of the grader are forked from has died; see its error above.")
        value: int = REPLY.unpack(reply)[0]
        return value
