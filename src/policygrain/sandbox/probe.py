"""Which way of keeping programs apart works on this machine, found by trying."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import get_args

from ..errors import UserError
from .isolation import INSIDE, Isolation
from .process import run_with

VARIABLE = "POLICYGRAIN_SANDBOX"  # one of them, instead of the first that works


@functools.cache
def isolation() -> Isolation:
    """The first way that works here, found by running a program with it. UserError with the reasons if none does."""
    wanted = os.environ.get(VARIABLE)
    if wanted is not None and wanted not in get_args(Isolation):
        raise UserError(f"{VARIABLE}: {wanted!r} is not {' or '.join(map(repr, get_args(Isolation)))}.")
    reasons = []
    for kind in get_args(Isolation):
        if wanted in (None, kind):
            if (reason := why_not(kind)) is None:
                found: Isolation = kind
                return found
            reasons.append(f"{kind}: {reason}")
    raise UserError(
        "programs of models cannot be run safely on this machine, so none is run. "
        + "; ".join(reasons)
        + ". Install bubblewrap (package `bubblewrap`), or use a kernel with Landlock (5.13 or newer)."
    )


def why_not(kind: Isolation) -> str | None:
    """Why programs cannot be run with ``kind``; None if a program was run with it and could not read a file outside."""
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return "the command bwrap is not installed"
    try:
        ran = run_with(kind, f"print('ran')\nopen({str(INSIDE)!r})", "", seconds=10.0, mib=512)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    last = ran.stderr.strip().splitlines()[-1:] or ["no message"]
    if ran.stdout != "ran\n":
        return last[0]
    return None if "PermissionError" in last[0] or "FileNotFoundError" in last[0] else "a file outside could be read"
