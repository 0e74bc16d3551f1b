"""Checkpoints that are whole or not there, and a lock that keeps two trainers out of one run directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..model.sharding import is_sharded
from .ranks import is_rank_0, map_over_ranks, on_rank_0
from .rollout_batch import SAVED_TYPES

KEEP = 2
WAIT_IN_JOBS = 120.0  # seconds; schedulers kill what does not end within about thirty
STATE, SHARDS, MARK = "state.pt", "shards", "sha256"  # MARK is written last, as `sha256sum` writes and reads it


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the run directory. The kernel drops the lock of a process that died, so none is ever stale.

    A scheduler may start a job again before the last attempt is quite gone, so a batch job waits for a while. Of
    several ranks the first holds it for all. Between nodes it holds where the file system passes `flock` on (NFS does,
    Lustre and BeeGFS where they are mounted so).
    """
    if not is_rank_0():
        yield
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + (WAIT_IN_JOBS if "SLURM_JOB_ID" in os.environ else 0.0)
    with (run_dir / "lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    file.seek(0)
                    raise UserError(
                        f"{run_dir}: another process is training here ({file.read().strip()}). "
                        "Wait for it, or choose another --run-dir."
                    ) from error
                time.sleep(0.5)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def save(
    checkpoints: Path, step: int, parts: Mapping[str, Any], counters: Mapping[str, Any], keep_every: int | None = None
) -> None:
    """Write `stepNNNNN` in the folder ``checkpoints``: a temporary folder, flushed, then renamed.

    ``parts`` have a `state_dict`; a sharded model, and its optimizer with it, are written by all ranks, which call this
    together. Kept are the newest two and, for good, those of multiples of ``keep_every`` steps.
    """
    folder = checkpoints / f"step{step:05d}"
    temporary = folder.with_name(f".{folder.name}")
    with _explained(folder, temporary):
        on_rank_0(lambda: _make_room(temporary))
        sharded = _sharded(parts)
        if sharded:
            _save_shards(sharded, temporary / SHARDS)
        rest = {name: part.state_dict() for name, part in parts.items() if name not in sharded}
        on_rank_0(lambda: _save_state({**rest, **counters}, temporary / STATE))
        names = on_rank_0(lambda: _files(temporary))
        digests = map_over_ranks(lambda own: [_digest(temporary / name) for name in own], names)
        on_rank_0(lambda: _finish(temporary, folder, dict(zip(names, digests, strict=True)), keep_every))


def load_newest(checkpoints: Path, parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Load the newest whole checkpoint into ``parts`` and return its counters; torn ones are passed over aloud.

    None where there is none. A sharded one may have been written by another number of ranks.
    """
    folder = _newest_whole(checkpoints)
    if folder is None:
        return None
    try:
        with torch.serialization.safe_globals(SAVED_TYPES):
            state: dict[str, Any] = torch.load(folder / STATE, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        # torch's own message advises to load the file all the same.
        raise UserError(
            f"{folder / STATE}: not a checkpoint that may be loaded: it is damaged, or holds more than tensors, "
            f"numbers and batches, which could execute code. Remove {folder}; the run then continues from the "
            "checkpoint before it."
        ) from error
    sharded = _sharded(parts)
    if sharded:
        _load_shards(sharded, folder / SHARDS)
    for name, part in parts.items():
        if name not in sharded:
            part.load_state_dict(state.pop(name))
    return state


def _newest_whole(checkpoints: Path) -> Path | None:
    # The first rank looks for all: another node may see a folder a little later.
    folders = on_rank_0(lambda: sorted(checkpoints.glob("step*"), reverse=True))
    for folder in folders:
        marks = on_rank_0(lambda folder=folder: _marks(folder))  # type: ignore[misc]
        found = map_over_ranks(lambda own, folder=folder: [_digest(folder / name) for name in own], list(marks))  # type: ignore[misc]
        if marks and found == list(marks.values()):
            return folder
        if is_rank_0():
            print(f"{folder}: passed over, its content does not match its checksums.", file=sys.stderr)
    return None


def _marks(folder: Path) -> dict[str, str]:
    """Digests by file name; none where the list is torn or is not that of the files that are there."""
    try:
        text = (folder / MARK).read_text(encoding="utf-8", errors="replace")
        marks = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
        return marks if sorted(marks) == _files(folder) and text == _list(marks) else {}
    except OSError:
        return {}


def _list(digests: dict[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def _files(folder: Path) -> list[str]:
    """What a checkpoint consists of, besides its mark."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if str(path) != MARK)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return str(error)


def _make_room(temporary: Path) -> None:
    """An empty folder; what killed processes have left is removed."""
    for left in temporary.parent.glob(".step*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)


def _save_state(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # how torch says that a disk is full
        raise OSError(str(error)) from error


def _finish(temporary: Path, folder: Path, digests: dict[str, str], keep_every: int | None) -> None:
    """From a temporary folder to a checkpoint, on disk before its name is; then older ones go."""
    (temporary / MARK).write_text(_list(digests))
    for path in (*(temporary / name for name in digests), temporary / MARK, temporary):
        _flush(path)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    _flush(folder.parent)
    for old in sorted(folder.parent.glob("step*"))[:-KEEP]:
        if keep_every is None or int(old.name.removeprefix("step")) % keep_every:
            shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(folder: Path, temporary: Path) -> Iterator[None]:
    """A disk that is full, or gone, is one message."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{folder}: the checkpoint cannot be written: {error}. Older checkpoints are untouched."
        ) from error


# ---- sharded models, by torch.distributed.checkpoint ----------------------------------------------------------------


def _sharded(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of which each rank has a share: model, heads and optimizer, or nothing."""
    if "model" not in parts or not is_sharded(parts["model"]):
        return {}
    return {name: parts[name] for name in ("model", "heads", "optimizer") if name in parts}


def _modules(sharded: dict[str, Any]) -> torch.nn.Module:
    return torch.nn.ModuleDict({name: part for name, part in sharded.items() if name != "optimizer"})


def _save_shards(sharded: dict[str, Any], folder: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict

    state = dict(zip(("modules", "optimizer"), get_state_dict(_modules(sharded), sharded["optimizer"]), strict=True))
    try:
        dcp.save(state, checkpoint_id=folder)
    except CheckpointException as error:
        raise OSError(f"{next(iter(error.failures.values()))[0]}") from error


def _load_shards(sharded: dict[str, Any], folder: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    modules, optimizer = _modules(sharded), sharded["optimizer"]
    state: dict[str, Any] = dict(zip(("modules", "optimizer"), get_state_dict(modules, optimizer), strict=True))
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(modules, optimizer, model_state_dict=state["modules"], optim_state_dict=state["optimizer"])
