"""The process that workers are forked from, and what a worker does.

`python -m policygrain.grading.forkserver SOCKET SECONDS BYTES` imports sympy and math-verify once, fills their tables
and then waits: a worker is a fork of it, so replacing one takes milliseconds. Being a process of its own, it does not
have the threads and the address space of whoever uses the grader. The rest of the package does not import it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
from multiprocessing.connection import Connection

from .messages import FORK, REPLY, REQUEST, UNPARSABLE_GOLD
from .numbers import Options
from .symbolic import UnparsableGold, judge, warm_up


def main() -> None:
    """Fork and end workers as asked on the socket; its end is ours."""
    control = socket.socket(fileno=int(sys.argv[1]))
    seconds, memory = float(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGTERM, signal.SIGUSR1):
        # A scheduler sends them to every process of a job; the trainer ends its step, and needs its answers judged.
        signal.signal(number, signal.SIG_IGN)
    warm_up()
    gc.freeze()  # what is there stays, so that a worker's collector does not touch, and thereby copy, its pages
    control.sendall(REPLY.pack(0))
    while True:
        message, handles, _, _ = socket.recv_fds(control, REQUEST.size, 1)
        if not message:
            return
        kind, pid = REQUEST.unpack(message)
        if kind == FORK:
            pid = os.fork()
            if pid == 0:
                control.close()
                try:
                    work(Connection(handles[0]), seconds, memory)
                finally:
                    os._exit(0)
            os.close(handles[0])
            control.sendall(REPLY.pack(pid))
        else:
            # Only its parent can end a process without the risk that its number is another's by now.
            os.kill(pid, signal.SIGKILL)
            control.sendall(REPLY.pack(os.waitpid(pid, 0)[1]))


def work(connection: Connection, seconds: float, memory: int) -> None:
    """Judge chunks of answers until there are no more, reporting each outcome as it is known."""
    silence = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(silence, standard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # nothing here writes files
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Garbage that an answer leaves behind is found sooner or later; the default thresholds cost a fifth of the time.
    gc.set_threshold(20_000, 20, 20)
    while True:
        try:
            chunk = json.loads(connection.recv_bytes())
        except EOFError:
            return
        for gold, answer, options in chunk:
            # The kernel ends the process when the time is used up, whatever it is doing, in Python or in C.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                outcome: str = judge(gold, answer, Options(*options))
            except UnparsableGold:
                outcome = UNPARSABLE_GOLD
            except RecursionError:
                outcome = "unparsable"
            except Exception as error:
                if isinstance(error, MemoryError):
                    os._exit(1)  # what was half made may be anywhere; the next answer gets a fresh worker
                outcome = "error"
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(outcome.encode())
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > memory / 2:
            return  # the parser's tables grow with what it has seen; a fork of the forkserver starts small


if __name__ == "__main__":
    main()
