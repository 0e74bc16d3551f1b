"""Functions of untrusted programs, which are called in a process of their own."""

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
# Limits are on processor time, so that the load of the machine changes no outcome; in wall-clock time a program may
# take this many times as long.
WALL_CLOCK_FACTOR = 3

# Exit statuses of a program whose processor time is used up; bwrap gives a signal as 128 + its number.
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)


class TimeLimit(BaseException):
    """A function took too long. No Exception, so that tests which catch those do not go on."""


@functools.cache
def isolation() -> str:
    """`bubblewrap`, when a program was run by it. UserError with the reason and what to do where that fails."""
    if (reason := why_not()) is not None:
        raise UserError(
            f"programs of models are run by bubblewrap alone, so none is run: {reason}. Install it (apt install "
            "bubblewrap, dnf install bubblewrap, conda install -c conda-forge bubblewrap); then `bwrap --unshare-all "
            "--ro-bind / / true` must end without a message. If it has one, this machine or container forbids user "
            "namespaces: docs/coding.md says how they are allowed."
        )
    return "bubblewrap"


def why_not() -> str | None:
    """Reason why programs cannot be run, or None: a test program could neither make a pipe nor read a file outside."""
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
    return "a program under it can do what it must not"


class Function:
    """A function of an untrusted program; calls are executed in a sandbox.

    Arguments and return values are copies, of Python's own types. What the program does to `assert`, `sys.exit` or any
    module it does to itself alone. ``failure`` says why there is no function: `syntax`, `memory`, `raised`, `timeout`,
    `ended`, `output` (more than LONGEST_REPLY at once), `too_long`. The program ends with its first failure. OSError
    with bubblewrap's message if it does not work.
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
            self._fail("ended")  # what it sent is no value
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
    """A running program: its pipes, and how it is ended."""

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
        """Send the job when the sandbox is there. TimeLimit; OSError if it cannot be made."""
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
        """Whether the kernel has ended it because its processor time is used up."""
        try:
            status = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return False
        return status in OUT_OF_TIME

    def end(self) -> None:
        """Terminate it and remove its isolation; nothing to do if it has ended."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
