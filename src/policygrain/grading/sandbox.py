"""Calls functions of untrusted programs in a sandbox: a process isolated by bubblewrap."""

from __future__ import annotations

import builtins
import contextlib
import functools
import json
import os
import platform
import selectors
import signal
import subprocess
import time
from typing import IO, Any, Self

from ..errors import UserError
from .sandbox_inside import decode, encode
from .sandbox_isolation import INSIDE, MACHINES, bwrap, command, rules

LONGEST_PROGRAM = 1 << 20  # characters
LONGEST_REPLY = 1 << 25  # bytes of one return value; the longest in the published sets has 12.4 million
# Limits are on processor time, so that the load of the machine does not change outcomes; in wall-clock time a program
# may take this many times as long.
WALL_CLOCK_FACTOR = 3

# Exit statuses of a program whose processor time is used up; bwrap gives a signal as 128 + its number.
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)


class TimeLimit(BaseException):
    """A function took too long. Not a subclass of Exception, so that tests which catch Exception do not continue."""


@functools.cache
def isolation() -> str:
    """The method of isolation, `bubblewrap`, once a test program has run in it.

    UserError, with the reason and what to do, if the test fails.
    """
    if (reason := why_not()) is not None:
        raise UserError(
            f"programs that models write run only inside bubblewrap, which does not work here: {reason}. Install it "
            "(apt install bubblewrap, dnf install bubblewrap, conda install -c conda-forge bubblewrap); then `bwrap "
            "--unshare-all --ro-bind / / true` must print nothing. If it prints an error, this machine or container "
            "forbids user namespaces: docs/coding.md explains how to allow them."
        )
    return "bubblewrap"


def why_not() -> str | None:
    """Reason why programs cannot be isolated; None if a test program can neither make a pipe nor read outside files."""
    if platform.machine() not in MACHINES:
        return f"the system calls of {platform.machine()} are not known"
    if bwrap() is None:
        return "the command bwrap is not installed"
    program = f"import os\ndef f():\n    try: os.pipe()\n    except OSError: open({str(INSIDE)!r})"
    try:
        function = Function(program, "f", seconds=10.0, mib=512)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    with function:
        try:
            function()
        except FileNotFoundError:
            return None
        except (Exception, TimeLimit) as error:
            return str(error) or type(error).__name__
    return "a program inside it could make a pipe or read files of this machine"


class Function:
    """A function of an untrusted program; calls are executed in a sandbox.

    Arguments and return values are copies of built-in types. Changes that the program makes to `assert`, `sys.exit` or
    any module stay in its own process. ``failure`` is the reason why the function cannot be called (any longer):
    `syntax`, `memory`, `raised`, `timeout`, `ended`, `output` (more than LONGEST_REPLY at once) or `too_long`. The
    program ends with its first failure. OSError with bubblewrap's message if bubblewrap fails.
    """

    def __init__(self, program: str, name: str, seconds: float = 5.0, mib: int = 512) -> None:
        self.failure: str | None = None
        self._buffer = bytearray()
        self._sandbox: Sandbox | None = None
        if len(program) > LONGEST_PROGRAM:
            self.failure = "too_long"
            return
        self._sandbox = Sandbox(seconds)
        try:
            self._sandbox.begin(program, name, seconds, mib)
            reply = self._read()
            if reply.get("ready") is not True:
                self._fail(str(reply.get("failed", "ended")))
        except TimeLimit:
            self._fail("timeout")
        except BaseException:
            self.close()
            raise

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's value. Raises what it raised, by name (StopIteration, which ends loops of tests, as
        RuntimeError), or TimeLimit.
        """
        if self.failure is not None or self._sandbox is None:
            raise RuntimeError(f"the program has ended: {self.failure}")
        request = json.dumps([encode(list(arguments)), {"dict": [[k, encode(v)] for k, v in keywords.items()]}]) + "\n"
        try:
            self._sandbox.send(request.encode())
            reply = self._read()
            if "value" in reply:
                return decode(reply["value"])
        except TimeLimit:
            self._fail("timeout")
            raise
        except Exception as error:
            self._fail("ended")  # the reply cannot be decoded
            raise RuntimeError("the program sent no value") from error
        if "raised" in reply:
            kind = getattr(builtins, str(reply["raised"]), None)
            wrong = not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, StopIteration)
            raise (RuntimeError if wrong else kind)(str(reply.get("text", "")))  # type: ignore[misc]
        self._fail(str(reply.get("failed", "ended")))
        raise MemoryError if self.failure == "memory" else RuntimeError(f"the program has ended: {self.failure}")

    def close(self) -> None:
        """End the program."""
        if self._sandbox is not None:
            self._sandbox.end()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        """One line of the program as JSON, or why there is none; TimeLimit if it takes too long."""
        assert self._sandbox is not None
        end = self._buffer.find(b"\n")
        while end < 0:
            part = self._sandbox.read()
            if not part:
                if self._sandbox.out_of_time():
                    raise TimeLimit
                return {}
            if len(self._buffer) + len(part) > LONGEST_REPLY:
                return {"failed": "output"}
            if (newline := part.find(b"\n")) >= 0:
                end = len(self._buffer) + newline
            self._buffer += part
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            content = json.loads(line)
        except (ValueError, RecursionError, MemoryError):
            return {}
        return content if isinstance(content, dict) else {}


class Sandbox:
    """The process of a program inside bubblewrap, with its pipes."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + WALL_CLOCK_FACTOR * seconds
        handle, writable = os.pipe()
        try:
            with os.fdopen(writable, "wb") as pipe:
                pipe.write(rules(platform.machine()))
            self.process = subprocess.Popen(
                command(handle),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[handle],
                cwd="/",
                env={},
                start_new_session=True,
            )
        finally:
            os.close(handle)
        assert self.process.stdin is not None and self.process.stdout is not None and self.process.stderr is not None
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        os.set_blocking(self.stdin.fileno(), False)

    def begin(self, program: str, function: str, seconds: float, mib: int) -> None:
        """Wait until the sandbox has started, then send the job. TimeLimit; OSError if bubblewrap fails."""
        if not os.read(self._ready(self.stdout, selectors.EVENT_READ), 1):
            self.process.wait()
            raise OSError(self.stderr.read(500).decode(errors="replace").strip() or "bubblewrap ended")
        job = json.dumps({"program": program, "function": function, "seconds": seconds, "mib": mib}).encode()
        self.send(len(job).to_bytes(8, "big") + job)

    def send(self, data: bytes) -> None:
        """Write to the program; TimeLimit if it does not read."""
        while data:
            data = data[os.write(self._ready(self.stdin, selectors.EVENT_WRITE), data[: 1 << 16]) :]

    def read(self) -> bytes:
        """Next bytes of the program's output, empty at the end. TimeLimit if it writes nothing."""
        return os.read(self._ready(self.stdout, selectors.EVENT_READ), 1 << 16)

    def _ready(self, pipe: IO[bytes], event: int) -> int:
        """A pipe's handle when it can be read or written. TimeLimit after the deadline."""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            if not selector.select(max(0.0, self.deadline - time.monotonic())):
                raise TimeLimit
        return pipe.fileno()

    def out_of_time(self) -> bool:
        """Whether the kernel has ended the program because its processor time was used up."""
        try:
            status = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return False
        return status in OUT_OF_TIME

    def end(self) -> None:
        """Kill the program, unless it has ended, and close its pipes."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
