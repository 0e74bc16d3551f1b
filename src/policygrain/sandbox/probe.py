"""Whether programs can be kept apart on this machine, found by trying."""

from __future__ import annotations

import functools
import platform
import subprocess

from ..errors import UserError
from .isolation import INSIDE, MACHINES, bwrap
from .process import run


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
    """Why programs cannot be run; None if one was run that could neither make a pipe nor read a file outside."""
    if platform.machine() not in MACHINES:
        return f"the system calls of {platform.machine()} are not known"
    if bwrap() is None:
        return "the command bwrap is not installed"
    program = f"import os\nprint('ran')\ntry: os.pipe()\nexcept OSError: open({str(INSIDE)!r})"
    try:
        ran = run(program, "", seconds=10.0, mib=512)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
    if ran.stdout != "ran\n":
        return last
    return None if last.startswith("FileNotFoundError") else "a program under it can do what it must not"
