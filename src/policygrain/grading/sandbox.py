"""Calls functions of untrusted programs in a sandbox: a process isolated by bubblewrap, with limits of the kernel."""

from __future__ import annotations

import builtins
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from ..errors import UserError
from .sandbox_inside import decode, encode

INSIDE = Path(__file__).with_name("sandbox_inside.py")
LONGEST_REPLY = 1 << 25  # bytes of one return value; the longest in the published sets has 12.4 million
# Exit statuses of bwrap for a program that a signal of the kernel has ended because its time was used up.
OUT_OF_TIME = (128 + signal.SIGXCPU, 128 + signal.SIGKILL, 128 + signal.SIGALRM)


@functools.cache
def arguments() -> list[str]:
    """The arguments of bubblewrap: its isolation, the folders that an interpreter needs, and the interpreter."""
    # As root, the program becomes nobody by itself: its folders may be readable for root alone.
    as_root = os.getuid() == 0
    found = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if as_root else ["--unshare-user"]
    found += [f"--unshare-{kind}" for kind in ("cgroup-try", "ipc", "net", "pid", "uts")]
    # Of an interpreter's prefix outside of any virtual environment, `bin` and `lib` alone.
    interpreter = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    prefixes = [sys.base_prefix, str(interpreter.parent.parent)]
    folders = [f"{prefix}/{part}" for prefix in prefixes for part in ("bin", "lib", "lib64")]
    for path in dict.fromkeys([*folders, "/usr/lib", "/usr/lib64", "/lib", "/lib64"]):
        for parent in reversed(Path(path).parents[:-1]):
            found += ["--dir", str(parent)]
        found += ["--ro-bind-try", path, path]
    # No mount is writable: files written there would not count as memory of the program.
    found += ["--dir", "/dev", "--dev-bind", os.devnull, os.devnull, "--remount-ro", "/", "--chdir", "/"]
    program = [str(interpreter), "-I", "-S", "-B", "-c", INSIDE.read_text(encoding="utf-8")]
    return ["--die-with-parent", "--cap-drop", "ALL", *found, "--", *program]


@functools.cache
def isolation() -> str:
    """`bubblewrap`, if a test program can neither start a process nor read files of this machine, else UserError."""
    program = "import os\ndef f():\n    try: os.fork()\n    except OSError: open('/etc/passwd')"
    try:
        with closing(Function(program, "f", seconds=10.0)) as function, suppress(FileNotFoundError):
            function()
            raise OSError("a program inside it could start a process or read files")
    except (Exception, TimeLimit) as error:
        raise UserError(
            f"programs that models write run only inside bubblewrap, which does not work here: {error}. docs/coding.md "
            "explains how to get it (apt install bubblewrap, or with dnf or conda) and how to allow user namespaces."
        ) from None
    return "bubblewrap"


class TimeLimit(BaseException):
    """A function took too long. Not a subclass of Exception, so that tests which catch Exception do not continue."""


class Function:
    """A function of an untrusted program; its calls are executed in a sandbox, with copies of built-in types.

    ``failure``, the first, ends it: `timeout`, `ended`, `output` (more than LONGEST_REPLY at once), or the name of what
    the program raised as it was defined. OSError with bubblewrap's message if that fails.
    """

    def __init__(self, program: str, name: str, seconds: float = 5.0, mib: int = 512) -> None:
        self.calls = 0
        self.failure: str | None = None
        options: Any = {**dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE), "cwd": "/", "env": {}}
        folders = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]  # the second: conda
        if (bwrap := shutil.which("bwrap", path=os.pathsep.join(folders))) is None:
            raise OSError("the command bwrap is not installed")
        self._process = cast("Any", subprocess.Popen([bwrap, *arguments()], **options, start_new_session=True))
        if self._process.stdout.readline() != b"\n":
            raise OSError(self._process.communicate()[1].decode(errors="replace").strip() or "bubblewrap ended")
        with suppress(TimeLimit, MemoryError, RuntimeError):
            self._ask({"program": program, "function": name, "seconds": seconds, "mib": mib})

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        """The function's value. Raises TimeLimit, or what it raised; for StopIteration RuntimeError."""
        self.calls += 1
        if self.failure is not None:
            raise RuntimeError(f"the program has ended: {self.failure}")
        reply = self._ask(encode([positional, keywords]))
        if "raised" in reply:
            kind = getattr(builtins, str(reply["raised"]), None)
            wrong = not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, StopIteration)
            try:
                error = (RuntimeError if wrong else kind)(*decode(reply["args"]))  # type: ignore[misc]
            except Exception:
                error = RuntimeError(str(reply.get("text", "")))
            raise error
        try:
            return decode(reply["value"])
        except Exception:
            raise self._ended("ended") from None

    def _ask(self, message: Any) -> dict[str, Any]:
        """The program's reply to a message. Ends it, and raises why, if there is none."""
        line, reply = b"", None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline(LONGEST_REPLY)
        if len(line) == LONGEST_REPLY:
            raise self._ended("output")
        if not line:
            raise self._ended("timeout" if self._process.wait() in OUT_OF_TIME else "ended")
        with suppress(ValueError, RecursionError, MemoryError):
            reply = json.loads(line)
        if not isinstance(reply, dict) or "failed" in reply:
            raise self._ended(str(reply["failed"]) if isinstance(reply, dict) else "ended")
        return reply

    def _ended(self, failure: str) -> BaseException:
        self.failure = failure
        self.close()
        error = {"timeout": TimeLimit, "MemoryError": MemoryError}.get(failure, RuntimeError)
        return error(f"the program has ended: {failure}")

    def close(self) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
