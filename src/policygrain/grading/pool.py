"""Worker processes that grade answers, with limits of time and memory for each answer."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ..errors import UserError
from .forkserver import END, FORK, REPLY, REQUEST, RETIRED
from .grader import Options

Task = tuple[str, str, Options]  # gold, answer, how to compare
CHUNK = 16  # most answers in a message: few enough to balance the load, enough to keep a worker busy
# The time limit is on a worker's processor time, so that the load of the machine does not change outcomes. A worker
# that takes this many times as long in wall-clock time is ended, too.
WALL_CLOCK_FACTOR = 5
START_TIMEOUT = 120.0  # seconds for the forkserver to start (it usually takes three)
REPLY_TIMEOUT = 30.0  # seconds for a reply of the forkserver after that (it usually takes milliseconds)
LONGEST_LINE = 1 << 14  # bytes of a worker's message
ATTEMPTS = 2  # forkservers tried; a machine that is short of memory may kill one


def default_workers() -> int:
    """The processors of this machine, shared among the processes of a run (LOCAL_WORLD_SIZE: torchrun's count)."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class ForkserverDied(Exception):
    """The forkserver does not answer. Its own error, if any, is on standard error."""


@dataclass
class Worker:
    """A process and the indices of the tasks that were assigned to it and are not graded yet.

    Only what follows ``token`` in a line is its own: tests may write to any file of their process.
    """

    pid: int
    connection: Connection
    pending: deque[int] = field(default_factory=deque)
    since: float = 0.0  # when its tasks were assigned or its last outcome was received; -inf: its connection is closed
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    buffer: bytes = b""  # the beginning of a line
    retired: bool = False


class Pool:
    """``workers`` processes with at most ``seconds`` of processor time per answer and ``memory`` bytes each.

    ``kind`` is the module of this room that grades an answer. Processes are started on first use and kept until
    ``close``; with ``fresh`` each answer gets a process of its own.
    """

    def __init__(self, workers: int, seconds: float, memory: int, kind: str = "symbolic", fresh: bool = False) -> None:
        self.workers, self.seconds, self.memory, self.kind, self.fresh = workers, seconds, memory, kind, fresh
        self.idle: list[Worker] = []
        self.busy: dict[Connection, Worker] = {}
        self.forkserver: subprocess.Popen[bytes] | None = None
        self.control: socket.socket

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """For each task an outcome, or UNREADABLE_GOLD. Raises UserError if the processes cannot be kept running."""
        for _ in range(ATTEMPTS):
            try:
                return self._run(tasks)
            except ForkserverDied as died:
                reason = died
        raise UserError(
            f"grading ({self.kind}): the process that starts its workers failed {ATTEMPTS} times ({reason}). "
            "Its own error, if any, is above. Often the machine is short of memory or of processes."
        )

    def close(self) -> None:
        """End all processes."""
        with contextlib.suppress(ForkserverDied):
            for worker in [*self.idle, *self.busy.values()]:
                self._end(worker)
        self._abandon()

    def _run(self, tasks: Sequence[Task]) -> list[str]:
        outcomes = [""] * len(tasks)
        size = 1 if self.fresh else max(1, min(CHUNK, len(tasks) // (4 * self.workers)))
        queue = deque(deque(range(i, min(i + size, len(tasks)))) for i in range(0, len(tasks), size))
        tried: set[int] = set()  # tasks whose worker died once, perhaps for another reason
        try:
            while queue or self.busy:
                while queue and (self.idle or len(self.busy) < self.workers):
                    self._assign(self._acquire(), queue.popleft(), tasks)
                self._receive(outcomes)
                for worker in [w for w in self.busy.values() if not w.pending]:
                    del self.busy[worker.connection]
                    if self.fresh or worker.retired:
                        self._end(worker)
                    else:
                        self.idle.append(worker)
                for worker, reason in self._remove_ended():
                    if reason == "retired":
                        queue.appendleft(worker.pending)
                        continue
                    first = worker.pending.popleft()
                    if reason != "died" or first in tried:
                        outcomes[first] = reason if reason == "timeout" else "error"
                    else:
                        tried.add(first)
                        queue.appendleft(deque([first]))
                    if worker.pending:
                        queue.append(worker.pending)
        except ForkserverDied:
            self._abandon()
            raise
        except BaseException:
            self.close()  # or outcomes of these tasks would be read as those of the next call
            raise
        return outcomes

    def _assign(self, worker: Worker, indices: deque[int], tasks: Sequence[Task]) -> None:
        chunk = [(gold, answer, astuple(options)) for gold, answer, options in (tasks[i] for i in indices)]
        worker.pending, worker.since = indices, time.monotonic()
        message = json.dumps([worker.token, chunk])
        self.busy[worker.connection] = worker
        with contextlib.suppress(OSError):  # a worker that has died is found by _receive
            worker.connection.send_bytes(message.encode())

    def _receive(self, outcomes: list[str]) -> None:
        """Wait until a worker sends an outcome or is out of time, and store all outcomes that have arrived."""
        deadline = min(w.since for w in self.busy.values()) + WALL_CLOCK_FACTOR * self.seconds
        for ready in wait([*self.busy], max(0.0, deadline - time.monotonic())):
            assert isinstance(ready, Connection)
            worker = self.busy[ready]
            try:
                part = os.read(ready.fileno(), 1 << 16)
            except OSError:
                part = b""
            if not part:
                worker.since = -float("inf")
            *lines, rest = (worker.buffer + part).split(b"\n")
            worker.buffer = rest[-LONGEST_LINE:]
            for line in lines:
                _, token, text = line.decode(errors="replace").rpartition(worker.token)
                message = json.loads(text) if token else None
                if message == RETIRED:
                    worker.retired = True
                elif message is not None and worker.pending:
                    outcomes[worker.pending.popleft()] = message
                    worker.since = time.monotonic()

    def _remove_ended(self) -> list[tuple[Worker, str]]:
        """Workers that died or are out of time, after they were ended, each with the reason."""
        now, ended = time.monotonic(), []
        for worker in [w for w in self.busy.values() if now - w.since > WALL_CLOCK_FACTOR * self.seconds]:
            del self.busy[worker.connection]
            status = self._end(worker)
            if worker.since != -float("inf") or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
                ended.append((worker, "timeout"))
            else:
                ended.append((worker, "retired" if worker.retired else "died"))
        return ended

    def _acquire(self) -> Worker:
        """An idle worker, or a new one."""
        if self.idle:
            return self.idle.pop()
        if self.forkserver is None:
            self._start_forkserver()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [REQUEST.pack(FORK, 0)], [theirs.fileno()])
                return Worker(self._reply(), Connection(ours.detach()))
            except (OSError, ForkserverDied) as error:
                ours.close()
                raise ForkserverDied(*error.args) from error

    def _end(self, worker: Worker) -> int:
        """End a worker, if it has not ended, and return its wait status."""
        worker.connection.close()
        try:
            self.control.sendall(REQUEST.pack(END, worker.pid))
        except OSError as error:
            raise ForkserverDied(*error.args) from error
        return self._reply()

    def _start_forkserver(self) -> None:
        """Start the forkserver with this package, in a session of its own so that Ctrl-C does not reach it."""
        self.control, theirs = socket.socketpair()
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-c", f"from {__package__}.forkserver import main; main()"]
        with theirs:
            try:
                self.forkserver = subprocess.Popen(
                    [*command, *map(str, (theirs.fileno(), self.seconds, self.memory, self.kind))],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                )
            except OSError as error:
                self.control.close()
                raise ForkserverDied(*error.args) from error
        self.control.settimeout(START_TIMEOUT)
        self._reply()
        self.control.settimeout(REPLY_TIMEOUT)

    def _reply(self) -> int:
        try:
            value: int = REPLY.unpack(self.control.recv(REPLY.size))[0]
        except TimeoutError as error:
            raise ForkserverDied(f"no answer in {self.control.gettimeout():g} s") from error
        except (OSError, struct.error) as error:
            raise ForkserverDied("it ended") from error
        return value

    def _abandon(self) -> None:
        """End the forkserver without asking it. Its workers end when they find their connections closed."""
        for worker in [*self.idle, *self.busy.values()]:
            worker.connection.close()
        self.idle, self.busy = [], {}
        if self.forkserver is not None:
            self.control.close()
            self.forkserver.kill()
            self.forkserver.wait()
            self.forkserver = None
