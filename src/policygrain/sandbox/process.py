"""Untrusted programs as processes: run once with input and output, or as a function that is called."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from typing import Any, Literal, NamedTuple, Self

from .inside import decode, encode
from .isolation import Isolation, command, readable

LONGEST_PROGRAM = 1 << 20  # characters
LONGEST_OUTPUT = 1 << 16  # bytes of each of the two streams that are kept
LONGEST_REPLY = 1 << 28  # bytes of one return value
# Limits are on processor time, so that the load of the machine changes no outcome; in wall-clock time a program may
# take this many times as long.
WALL_CLOCK_FACTOR = 3

# Exit statuses of a program whose processor time is used up; bwrap gives a signal as 128 + its number.
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)

Ended = Literal["finished", "failed", "timeout", "memory", "output", "too_long"]


class Ran(NamedTuple):
    """How a program ended, and the beginning of what it wrote."""

    ended: Ended  # failed: an exception, a signal, or an exit status that is not 0
    stdout: str
    stderr: str
    isolation: Isolation


class TimeLimit(BaseException):
    """A function took too long. No Exception, so that tests which catch those do not go on."""


def run_with(kind: Isolation, program: str, stdin: str, seconds: float, mib: int) -> Ran:
    """Run a Python program once, kept apart by ``kind``; see `run_untrusted`."""
    if len(program) > LONGEST_PROGRAM:
        return Ran("too_long", "", "", kind)
    with _Started(kind, program, None, seconds, mib) as started:
        kept, ended = started.communicate(stdin.encode())
        status = started.process.returncode
    stdout, stderr = (part.decode(errors="replace") for part in kept)
    if ended is None:
        if status in OUT_OF_TIME:
            ended = "timeout"
        elif status == 0:
            ended = "finished"
        else:
            ended = "memory" if "MemoryError" in stderr[-200:] else "failed"
    return Ran(ended, stdout, stderr, kind)


class Function:
    """A function of an untrusted program, which runs in a sandbox; calling it calls it there.

    Arguments and return values are copies, of Python's own types. What the program does to `assert`, `sys.exit` or any
    module it does to itself alone. ``failure`` says why there is no function: `syntax`, `memory`, `raised`, `timeout`,
    `ended`, `too_long`.
    """

    def __init__(self, kind: Isolation, program: str, name: str, seconds: float = 5.0, mib: int = 512) -> None:
        self.failure: str | None = None
        self.deadline = time.monotonic() + WALL_CLOCK_FACTOR * seconds
        self._started: _Started | None = None
        if len(program) > LONGEST_PROGRAM:
            self.failure = "too_long"
            return
        self._started = _Started(kind, program, name, seconds, mib)
        self._buffer = b""
        try:
            found = self._read()
        except TimeLimit:
            self.failure = "timeout"
        else:
            self.failure = None if found.get("ready") is True else str(found.get("failed", "ended"))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's value. Raises what it raised, by name, or TimeLimit."""
        if self.failure is not None or self._started is None:
            raise RuntimeError(f"the program has ended: {self.failure}")
        request = json.dumps([encode(list(arguments)), {"dict": [[k, encode(v)] for k, v in keywords.items()]}]) + "\n"
        try:
            self._send(request.encode())
            found = self._read()
            if "value" in found:
                return decode(found["value"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.failure = "ended"  # what it sent is no value
            raise RuntimeError("the program sent no value") from error
        if "raised" in found:
            kind = getattr(builtins, str(found["raised"]), None)
            wrong = not (isinstance(kind, type) and issubclass(kind, Exception))
            raise (RuntimeError if wrong else kind)(str(found.get("text", "")))  # type: ignore[misc]
        self.failure = str(found.get("failed", "ended"))
        raise MemoryError if self.failure == "memory" else RuntimeError(f"the program has ended: {self.failure}")

    def close(self) -> None:
        """End the program."""
        if self._started is not None:
            self._started.__exit__()
            self._started = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, data: bytes) -> None:
        """Write a request; TimeLimit if the program does not read it."""
        assert self._started is not None and self._started.process.stdin is not None
        pipe = self._started.process.stdin.fileno()
        os.set_blocking(pipe, False)
        while data:
            _wait(pipe, selectors.EVENT_WRITE, self.deadline)
            data = data[os.write(pipe, data[: 1 << 16]) :]

    def _read(self) -> dict[str, Any]:
        """One line of the program as JSON; TimeLimit if it takes too long. An empty mapping if it has ended."""
        assert self._started is not None and self._started.process.stdout is not None
        pipe = self._started.process.stdout.fileno()
        while b"\n" not in self._buffer:
            _wait(pipe, selectors.EVENT_READ, self.deadline)
            part = os.read(pipe, 1 << 16)
            if not part:
                if self._started.out_of_time():
                    raise TimeLimit
                return {}
            self._buffer += part
            if len(self._buffer) > LONGEST_REPLY:
                return {"failed": "output"}
        line, _, self._buffer = self._buffer.partition(b"\n")
        found = json.loads(line)
        return found if isinstance(found, dict) else {}


def _wait(pipe: int, event: int, deadline: float) -> None:
    """Until a pipe can be read or written. TimeLimit after ``deadline``."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeLimit


class _Started:
    """A running program: its pipes, and how it is ended with everything that it has started."""

    def __init__(self, kind: Isolation, program: str, function: str | None, seconds: float, mib: int) -> None:
        job: dict[str, Any] = {"program": program, "function": function, "seconds": seconds, "mib": mib}
        self.wall = WALL_CLOCK_FACTOR * seconds
        self.folder = tempfile.TemporaryDirectory(prefix="policygrain-")  # its working directory
        devices = ["/dev/null", "/dev/urandom", "/dev/zero"]
        job["readable"] = [*readable(), self.folder.name, *devices] if kind == "landlock" else None
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(job).encode())
            file.seek(0)
            self.process = subprocess.Popen(
                command(kind, file.fileno()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if function is None else subprocess.DEVNULL,
                pass_fds=[file.fileno()],
                cwd=self.folder.name,
                env={},
                start_new_session=True,
            )

    def communicate(self, data: bytes) -> tuple[list[bytes], Ended | None]:
        """Send ``data`` and read both streams to their ends, their limits or the deadline."""
        process, deadline = self.process, time.monotonic() + self.wall
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        kept = {process.stdout: b"", process.stderr: b""}
        ended: Ended | None = None
        with selectors.DefaultSelector() as selector:
            for pipe in kept:
                selector.register(pipe, selectors.EVENT_READ)
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            while ended is None and any(pipe in selector.get_map() for pipe in kept):
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    ended = "timeout"
                for key, _ in events:
                    stream: Any = key.fileobj
                    if stream is process.stdin:
                        try:
                            data = data[os.write(stream.fileno(), data[: 1 << 16]) :] if data else b""
                        except BrokenPipeError:
                            data = b""
                        if not data:
                            selector.unregister(stream)
                            stream.close()
                        continue
                    part = os.read(stream.fileno(), 1 << 16)
                    if not part:
                        selector.unregister(stream)
                    elif len(kept[stream]) + len(part) > LONGEST_OUTPUT:
                        ended = "output"
                    kept[stream] += part[: LONGEST_OUTPUT - len(kept[stream])]
        if ended is None:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                ended = "timeout"
        return [*kept.values()], ended

    def out_of_time(self) -> bool:
        """Whether the kernel has ended it because its processor time is used up."""
        try:
            status = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return False
        return status in OUT_OF_TIME

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the whole process group; bubblewrap's namespaces end with it."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.folder.cleanup()
