"""The process that workers are forked from, and the workers' loop.

`main`, with the arguments SOCKET SECONDS BYTES KIND, imports the module KIND of this room, which grades
answers, once, with what it needs (`symbolic`: sympy and math-verify, whose caches are filled), and waits for requests.
A worker is a fork of it, so replacing one takes milliseconds. It is a process of its own because a fork of the trainer
would copy its threads' locks and its address space. Only this process and its workers import sympy.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from multiprocessing.connection import Connection
from typing import Any

from .grader import UNREADABLE_GOLD, Options, UnreadableGold

REQUEST = struct.Struct("!ci")  # FORK or END; for END the process id
REPLY = struct.Struct("!i")  # FORK: the process id of the new worker; END: its wait status (as of os.waitpid)
FORK, END = b"f", b"e"
RETIRED = "retired"  # sent by a worker that ends itself, perhaps with tasks left


def main() -> None:
    """Fork and end workers on request, until the socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    seconds, memory = float(sys.argv[2]), int(sys.argv[3])
    grader = importlib.import_module(f".{sys.argv[4]}", __package__)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        # A scheduler sends them to every process of a job; the trainer still grades the answers of its last step.
        signal.signal(number, signal.SIG_IGN)
    grader.warm_up()
    gc.freeze()  # a worker's garbage collector then leaves the shared pages alone, so they are not copied
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
                    work(Connection(handles[0]), seconds, memory, grader)
                finally:
                    os._exit(0)
            os.close(handles[0])
            control.sendall(REPLY.pack(pid))
        else:
            # Its parent sends the signal: until the parent has waited for it, no other process can get its id.
            os.kill(pid, signal.SIGKILL)
            control.sendall(REPLY.pack(os.waitpid(pid, 0)[1]))


def work(connection: Connection, seconds: float, memory: int, grader: Any) -> None:
    """Grade chunks of answers until the connection is closed, sending each outcome at once.

    An outcome is sent as a line: the worker's token, then the outcome as JSON.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (grader.LARGEST_FILE,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # The default thresholds cost a fifth of the time.
    gc.set_threshold(20_000, 20, 20)
    while True:
        try:
            token, chunk = json.loads(connection.recv_bytes())
        except EOFError:
            return

        def send(text: str, token: str = token) -> None:
            os.write(connection.fileno(), f"{token}{json.dumps(text)}\n".encode())

        for gold, answer, options in chunk:
            # The kernel ends the process when the time is used up, in Python or in C code.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                outcome = grader.grade_pair(gold, answer, Options(*options))
            except UnreadableGold:
                outcome = UNREADABLE_GOLD
            except RecursionError:
                outcome = "unparsable"
            except MemoryError:
                # Caches may be in an inconsistent state, so the next answer gets a new worker.
                send("error")
                return send(RETIRED)
            except BaseException:
                outcome = "error"
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(outcome)
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > memory / 2:
            # The parser's caches have grown; a new worker starts with those of the forkserver.
            return send(RETIRED)
