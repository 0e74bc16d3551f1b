"""Grading in processes with limits of time and memory for each answer.

A helper process imports the module of this room that grades answers (`symbolic`: sympy, whose caches are filled), once,
and forks a child for each chunk of answers. It is a process of its own because a fork of the trainer would copy its
threads' locks and its address space. Only the helper and its children import sympy.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ..errors import UserError
from .grader import UNREADABLE_GOLD, Options, UnreadableGold

Task = tuple[str, str, Options]  # gold, answer, how to compare
CHUNK = 32  # most answers of a child: few enough to balance the load, enough to be worth a fork
# The time limit is on a child's processor time, so that the load of the machine does not change outcomes. A child that
# takes this many times as long in wall-clock time is ended, too.
WALL_CLOCK_FACTOR = 5
START_TIMEOUT = 120.0  # seconds for the helper to start (it usually takes three)
REPLY_TIMEOUT = 30.0  # seconds for the next outcome beyond the time of an answer
LONGEST_LINE = 1 << 14  # bytes of a child's message
ATTEMPTS = 2  # helpers tried; a machine that is short of memory may kill one
RESULTS = 3  # the only file descriptor of a child besides 0, 1 and 2, which are /dev/null


def default_workers() -> int:
    """The processors of this machine, shared among the processes of a run (LOCAL_WORLD_SIZE: torchrun's count)."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class Pool:
    """``workers`` children at a time with at most ``seconds`` of processor time per answer and ``memory`` bytes each.

    ``kind`` is the module of this room that grades an answer; with ``fresh`` each answer gets a child of its own. The
    helper is started on first use and kept until ``close``.
    """

    def __init__(self, workers: int, seconds: float, memory: int, kind: str = "symbolic", fresh: bool = False) -> None:
        self.workers, self.seconds, self.memory, self.kind, self.fresh = workers, seconds, memory, kind, fresh
        self.helper: subprocess.Popen[bytes] | None = None
        self.control: socket.socket
        self.replies: TextIO

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """For each task an outcome, or UNREADABLE_GOLD. Raises UserError if the helper cannot be kept running."""
        if not tasks:
            return []
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                return self._run(tasks)
            except (OSError, ValueError) as error:
                reason = str(error)
                self.close()
            except BaseException:
                self.close()  # otherwise the next call would read the outcomes of these tasks
                raise
        raise UserError(
            f"grading ({self.kind}): the process that starts its workers failed {ATTEMPTS} times ({reason}). "
            "Its own error, if any, is above. Often the machine is short of memory or of processes."
        )

    def _run(self, tasks: Sequence[Task]) -> list[str]:
        if self.helper is None:
            self._start()
        request = [(gold, answer, astuple(options)) for gold, answer, options in tasks]
        self.control.sendall(json.dumps(request).encode() + b"\n")
        outcomes = [""] * len(tasks)
        for _ in tasks:
            number, outcome = json.loads(self._reply())
            outcomes[number] = outcome
        return outcomes

    def _start(self) -> None:
        """Start the helper with this package, in a session of its own so that Ctrl-C does not reach it."""
        self.control, theirs = socket.socketpair()
        self.replies = self.control.makefile()
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        settings = json.dumps([self.workers, self.seconds, self.memory, self.kind, self.fresh])
        with theirs:
            self.helper = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()", str(theirs.fileno()), settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            )
        self.control.settimeout(START_TIMEOUT)
        self._reply()
        self.control.settimeout(WALL_CLOCK_FACTOR * self.seconds + REPLY_TIMEOUT)

    def _reply(self) -> str:
        """A line of the helper. OSError if it has ended or does not answer."""
        if not (line := self.replies.readline()):
            raise OSError("it ended")
        return line

    def close(self) -> None:
        """End the helper and its children."""
        if self.helper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.helper.pid, signal.SIGKILL)
            self.helper.wait()
            self.replies.close()
            self.control.close()
            self.helper = None


# ---- in the helper --------------------------------------------------------------------------------------------------


@dataclass
class Child:
    """A process and the tasks that it has not graded yet.

    Only the text after ``token`` in a line is an outcome: tests may write to any file of their process, this pipe
    included.
    """

    pid: int
    pending: deque[int]
    token: str
    since: float = field(default_factory=time.monotonic)  # when it was started or its last outcome was received
    buffer: bytes = b""  # the beginning of a line
    last: str = ""  # its last outcome


def main() -> None:
    """Grade the tasks of each line that arrives and send a line (number, outcome) for each, until the socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    workers, seconds, memory, kind, fresh = json.loads(sys.argv[2])
    grader = importlib.import_module(f".{kind}", __package__)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        # A scheduler sends them to every process of a job; the trainer still grades the answers of its last step.
        signal.signal(number, signal.SIG_IGN)
    grader.warm_up()
    gc.freeze()  # a child's garbage collector then leaves the shared pages alone, so they are not copied
    control.sendall(b"ready\n")
    for line in control.makefile():
        tasks = json.loads(line)
        chunk = 1 if fresh else max(1, min(CHUNK, len(tasks) // (4 * workers)))
        queue = deque(deque(range(i, min(i + chunk, len(tasks)))) for i in range(0, len(tasks), chunk))
        for graded in grade(tasks, queue, control, workers, seconds, memory, grader):
            control.sendall(json.dumps(graded).encode() + b"\n")


def grade(
    tasks: list[Any],
    queue: deque[deque[int]],
    control: socket.socket,
    workers: int,
    seconds: float,
    memory: int,
    grader: Any,
) -> Iterator[tuple[int, str]]:
    """Each task's number and outcome, as children find them."""
    children: dict[int, Child] = {}  # by the pipe that they write to
    tried: set[int] = set()  # tasks whose child died once, perhaps for another reason
    while queue or children:
        while queue and len(children) < workers:
            pending, token = queue.popleft(), secrets.token_hex(8)
            readable, writable = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    work([tasks[i] for i in pending], token, writable, seconds, memory, grader)
                finally:
                    os._exit(0)
            os.close(writable)
            children[readable] = Child(pid, pending, token)
        limit = WALL_CLOCK_FACTOR * seconds
        wait = min(child.since for child in children.values()) + limit - time.monotonic()
        watched: list[Any] = [*children, control]
        ready, _, _ = select.select(watched, [], [], max(0.0, wait))
        if control in ready:
            os.killpg(0, signal.SIGKILL)  # the process that asked has ended
        for pipe, child in list(children.items()):
            ended = False
            if pipe in ready:
                for outcome in read(pipe, child):
                    yield child.pending.popleft(), outcome
                ended = not child.since
            late = not ended and time.monotonic() - child.since > limit
            if child.pending and not (ended or late):
                continue
            # No other process can have this id before its parent has waited for it.
            os.kill(child.pid, signal.SIGKILL)
            status = os.waitpid(child.pid, 0)[1]
            os.close(pipe)
            del children[pipe]
            if child.pending and child.last != "error":
                first = child.pending.popleft()
                if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
                    yield first, "timeout"
                elif first in tried:
                    yield first, "error"
                else:
                    tried.add(first)
                    queue.appendleft(deque([first]))
            if child.pending:
                queue.append(child.pending)


def read(pipe: int, child: Child) -> Iterator[str]:
    """The outcomes that have arrived from a child, whose ``since`` becomes 0 if it has ended."""
    part = os.read(pipe, 1 << 16)
    *lines, rest = (child.buffer + part).split(b"\n")
    child.buffer = rest[-LONGEST_LINE:]
    for line in lines:
        _, token, text = line.decode(errors="replace").rpartition(child.token)
        if token and child.pending:
            child.since, child.last = time.monotonic(), json.loads(text)
            yield child.last
    if not part:
        child.since = 0.0


# ---- in a child -----------------------------------------------------------------------------------------------------


def work(tasks: list[Any], token: str, pipe: int, seconds: float, memory: int, grader: Any) -> None:
    """Grade answers, sending each outcome at once as a line, the token and then the outcome as JSON.

    The child ends at the first error, so that the next answer gets a process whose caches are consistent.
    """
    os.dup2(pipe, RESULTS)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.closerange(RESULTS + 1, os.sysconf("SC_OPEN_MAX"))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (grader.LARGEST_FILE,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # The default thresholds cost a fifth of the time.
    gc.set_threshold(20_000, 20, 20)
    for gold, answer, options in tasks:
        # The kernel ends the process when the time is used up, in Python or in C code.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            outcome = grader.grade_pair(gold, answer, Options(*options))
        except UnreadableGold:
            outcome = UNREADABLE_GOLD
        except RecursionError:
            outcome = "unparsable"
        except BaseException:
            outcome = "error"
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        os.write(RESULTS, f"{token}{json.dumps(outcome)}\n".encode())
        if outcome == "error":
            return
