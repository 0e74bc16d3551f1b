"""Atomic checkpoints with checksums, and a lock so that only one process trains in a run directory."""

from __future__ import annotations

import contextlib
import fcntl
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

from .. import digests
from ..errors import UserError
from ..model.sharding import is_sharded
from .ranks import is_rank_0, map_over_ranks, on_rank_0
from .rollout_batch import SAVED_TYPES

KEEP = 2
WAIT_IN_JOBS = 120.0  # seconds; schedulers kill a job about 30 seconds after its termination signal
STATE, SHARDS, MARK = "state.pt", "shards", "sha256"  # MARK has the format of `sha256sum` and is written last


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Lock the run directory. The kernel releases the lock when its process ends, so it is never stale.

    A scheduler may restart a job before the previous attempt has ended, so a batch job waits for a while. Of several
    ranks, rank 0 holds the lock for all. Between nodes the lock works if the file system supports `flock` (NFS does;
    Lustre and BeeGFS do with certain mount options).
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
    """Write the folder `stepNNNNN` in ``checkpoints``: written under a temporary name, flushed to disk, then renamed.

    ``parts`` are objects with a `state_dict`. All ranks call this together; a sharded model and its optimizer are
    written by all of them. The two newest checkpoints and those of every ``keep_every`` steps are kept.
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
        digests = map_over_ranks(lambda share: [_digest(temporary / name) for name in share], names)
        on_rank_0(lambda: _finish(temporary, folder, dict(zip(names, digests, strict=True)), keep_every))


def load_newest(checkpoints: Path, parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Load the newest complete checkpoint into ``parts`` and return its counters; None if there is none.

    Incomplete checkpoints are skipped with a message. A sharded one may have been written by any number of ranks.
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
            f"{folder / STATE}: this checkpoint cannot be loaded: it is damaged, or contains objects other than "
            f"tensors, numbers and batches, which could execute code. Remove {folder}; the run then continues from the "
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
    # Rank 0 lists the folders for all ranks: another node may see a new folder later.
    folders = on_rank_0(lambda: sorted(checkpoints.glob("step*"), reverse=True))
    for folder in folders:
        marks = on_rank_0(lambda folder=folder: _marks(folder))  # type: ignore[misc]
        computed = map_over_ranks(lambda share, folder=folder: [_digest(folder / name) for name in share], list(marks))  # type: ignore[misc]
        if marks and computed == list(marks.values()):
            return folder
        if is_rank_0():
            print(f"{folder}: skipped, its content does not match its checksums.", file=sys.stderr)
    return None


def _marks(folder: Path) -> dict[str, str]:
    """Digests by file name; empty if the list is incomplete or does not match the files in the folder."""
    try:
        text = (folder / MARK).read_text(encoding="utf-8", errors="replace")
        marks = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
        return marks if sorted(marks) == _files(folder) and text == _list(marks) else {}
    except OSError:
        return {}


def _list(digests: dict[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def _files(folder: Path) -> list[str]:
    """The files of a checkpoint except MARK."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if str(path) != MARK)


def _digest(path: Path) -> str:
    try:
        return digests.of_file(path, full=True)
    except OSError as error:
        return str(error)


def _make_room(temporary: Path) -> None:
    """Create an empty folder, and remove temporary folders of killed processes."""
    for stale in temporary.parent.glob(".step*"):
        shutil.rmtree(stale, ignore_errors=True)
    temporary.mkdir(parents=True)


def _save_state(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # raised by torch when the disk is full
        raise OSError(str(error)) from error


def _finish(temporary: Path, folder: Path, digests: dict[str, str], keep_every: int | None) -> None:
    """Flush the temporary folder, rename it to ``folder``, and remove older checkpoints."""
    (temporary / MARK).write_text(_list(digests))
    for path in (*(temporary / name for name in digests), temporary / MARK, temporary):
        _flush(path)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    _flush(folder.parent)
    remove_old(folder.parent, KEEP, keep_every)


def remove_old(checkpoints: Path, newest: int, keep_every: int | None) -> None:
    """Remove all checkpoints except the ``newest`` ones and those of every ``keep_every`` steps."""
    folders = sorted(checkpoints.glob("step*"))
    for old in folders[: max(0, len(folders) - newest)]:
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
    """Turn errors of writing, such as a full disk, into a UserError."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{folder}: the checkpoint cannot be written: {error}. Older checkpoints are unchanged."
        ) from error


# ---- sharded models, by torch.distributed.checkpoint ----------------------------------------------------------------


def _sharded(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that are saved by all ranks: model, heads and optimizer of a sharded model; else empty."""
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
