"""Checkpoints that are whole or not there, and a lock that keeps two trainers out of one run directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from .drawing import SAVED_TYPES
from .ranks import is_first, once

KEEP = 2
WAIT_IN_JOBS = 120.0  # seconds; schedulers kill what does not end within about thirty


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the run directory. The kernel drops the lock of a process that died, so none is ever stale.

    A scheduler may start a job again before the last attempt is quite gone, so a batch job waits for a while. Of
    several ranks the first holds it for all.
    """
    if not is_first():
        yield
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + (WAIT_IN_JOBS if "SLURM_JOB_ID" in os.environ else 0.0)
    with (run_dir / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise UserError(
                        f"{run_dir}: another process is training here. Wait for it, or choose another --run-dir."
                    ) from error
                time.sleep(0.5)
        yield


def save(run_dir: Path, step: int, state: dict[str, Any]) -> None:
    """Write `checkpoints/stepNNNNN`: a temporary folder, flushed, then renamed; the newest two are kept."""
    once(lambda: _write(run_dir, step, state))


def _write(run_dir: Path, step: int, state: dict[str, Any]) -> None:
    folder = run_dir / "checkpoints" / f"step{step:05d}"
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        torch.save(state, temporary / "state.pt")
        digest = hashlib.sha256((temporary / "state.pt").read_bytes()).hexdigest()
        (temporary / "sha256").write_text(digest)
        for name in ("state.pt", "sha256"):
            with (temporary / name).open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{folder}: the checkpoint cannot be written: {error}. Older checkpoints are untouched."
        ) from error
    for old in sorted((run_dir / "checkpoints").glob("step*"))[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def load_newest(run_dir: Path) -> dict[str, Any] | None:
    """State of the newest whole checkpoint; torn ones are passed over aloud. None where there is none."""
    folder = once(lambda: _newest_whole(run_dir))
    if folder is None:
        return None
    with torch.serialization.safe_globals(SAVED_TYPES):
        state: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
    return state


def _newest_whole(run_dir: Path) -> Path | None:
    for folder in sorted((run_dir / "checkpoints").glob("step*"), reverse=True):
        try:
            content = (folder / "state.pt").read_bytes()
            if hashlib.sha256(content).hexdigest().encode() == (folder / "sha256").read_bytes():
                return folder
            problem = "its content does not match its checksum"
        except OSError as error:
            problem = str(error)
        print(f"{folder}: passed over, {problem}.", file=sys.stderr)
    return None
