"""Another program that trains a run: it is started, watched, and ended with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Stopped, UserError

if TYPE_CHECKING:
    from ..train.stopping import Stop

POLL_SECONDS = 1.0
END_SECONDS = 20.0  # from SIGTERM to SIGKILL
# The kernel kills the program when this process is killed (PR_SET_PDEATHSIG is 1): otherwise it would go on training in
# the folder while the next command starts it there again.
END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
LAST_LINES = 15  # of its output, in the message of a failed run


def run_program(
    name: str,
    command: Sequence[str],
    folder: Path,
    output: Path,
    variables: Mapping[str, str],
    stop: Stop | None,
    resumes: Callable[[], str],
    watch: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run ``command`` in ``cwd`` (default: ``folder``) until it has ended; its ``output`` is appended to a file.

    Stopped on a signal, at the time limit, and if the program ends with the exit code for that; UserError if it fails.
    ``watch`` is called while it runs, and ends it by an error. ``folder``, ``name`` of the program and ``resumes()``,
    where the next attempt begins, are for messages.
    """
    with output.open("ab") as file:
        # In a session of its own: a signal to this process does not end the program before this process decides.
        process = subprocess.Popen(
            [sys.executable, "-c", END_WITH_PARENT, *command],
            cwd=cwd or folder,
            stdout=file,
            stderr=file,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                if stop is not None and (reason := stop.after_step(0.0)) is not None:
                    raise Stopped(f"{folder}: stopped by {reason}; {resumes()}")
                if watch is not None:
                    watch()
        finally:
            _end(process)
    if process.returncode == Stopped.exit_code:
        raise Stopped(f"{folder}: {name} stopped early (exit code {process.returncode}); {resumes()}")
    if process.returncode:
        last = "\n".join(output.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise UserError(
            f"{folder}: {name} ended with exit code {process.returncode}; {resumes()} See {output}; the last lines:\n"
            f"{last}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and the processes of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(END_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
