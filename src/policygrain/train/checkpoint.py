"""What a run resumes from: checkpoints, written in the background, and the logs of its steps; a lock on its folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pickle
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils._pytree import tree_leaves, tree_map

from .. import digests
from ..errors import UserError
from ..files import atomic_text, flush, json_lines, lock
from ..model.engine import Rollout
from ..objective.batch import TokenBatch
from ..paths import RunFolder
from .batch import Batch
from .ranks import is_rank_0, on_rank_0

KEEP = 2
WAIT_IN_JOBS = 120.0  # seconds; schedulers kill a job about 30 seconds after its termination signal
SAVED_TYPES: list[Any] = [Batch, Rollout, TokenBatch]  # the only types, besides tensors and numbers, of a checkpoint
TEMPORARY, STATE, MARK = ".step", "state.pt", "sha256"  # MARK has the format of `sha256sum` and is written last


def run_lock(run_dir: Path) -> contextlib.AbstractContextManager[Any]:
    """Lock the run directory, by rank 0 for all ranks, until the end of the context or of this process."""
    # A scheduler may restart a job before the previous attempt has ended.
    wait = WAIT_IN_JOBS if "SLURM_JOB_ID" in os.environ else 0.0
    locked = "another process is training here; wait for it, or choose another --run-dir"
    return lock(run_dir / "lock", locked, wait) if is_rank_0() else contextlib.nullcontext()


class Writer(contextlib.AbstractContextManager["Writer"]):
    """Context that writes checkpoints in the background, one at a time; at its end the last one is complete.

    An error of writing is raised by the next call.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints, self._thread = checkpoints, ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown()
        if kind is None:
            self.wait()

    def save(self, step: int, parts: Mapping[str, Any], counters: Mapping[str, Any]) -> None:
        """Copy the state of ``parts``, objects with a `state_dict`, and write it as the folder `stepNNNNN`."""

        def write() -> None:
            with completed(self.checkpoints / TEMPORARY, self.checkpoints, step):
                torch.save(state, make_room(self.checkpoints) / STATE)

        self.wait()
        state = {name: part.state_dict() for name, part in parts.items()} | dict(counters)
        size = sum(value.nbytes for value in tree_leaves(state) if isinstance(value, torch.Tensor))
        if 2 * size > _available_memory():  # pinned memory is taken in powers of two
            write()
            return
        state = _on_host(state)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies are complete before an update changes what they copy
        self._written = self._thread.submit(write)

    def wait(self) -> None:
        """Until the last checkpoint is complete. Raises the error if it could not be written, usually a UserError."""
        written, self._written = self._written, None
        if written is not None:
            written.result()


def _available_memory() -> int:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state in host memory, pinned where there is a GPU, which copies several times as fast into it."""
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}  # so that tied weights are copied and saved once

    def copy(value: Any) -> Any:
        if isinstance(value, Batch):
            return value.to(torch.device("cpu"))
        if not isinstance(value, torch.Tensor):
            return value
        place = value.data_ptr(), value.shape
        if place not in copies:
            empty = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            copies[place] = empty.copy_(value, non_blocking=True)
        return copies[place]

    return tree_map(copy, state)


def load_newest(checkpoints: Path) -> tuple[Path | None, dict[str, Any] | None]:
    """The folder of the newest checkpoint that matches its checksums and the state in it, on the CPU; else None."""
    for folder in _newest_first(checkpoints):
        try:
            sums = (folder / MARK).read_bytes()
            if sums and sums == _checksums(folder).encode():
                with torch.serialization.safe_globals(SAVED_TYPES):
                    return folder, torch.load(folder / STATE, weights_only=True, map_location="cpu")
        except OSError:
            pass
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            # torch's own message recommends to load the file without this check.
            raise UserError(
                f"{folder / STATE}: this checkpoint cannot be loaded: it is damaged, or has objects besides tensors, "
                f"numbers and batches, which could execute code. Remove {folder} to go on from the one before it."
            ) from error
        print(f"{folder}: skipped, its content does not match its checksums.", file=sys.stderr)
    return None, None


def _checksums(folder: Path) -> str:
    """The digest and name of each file in ``folder`` except MARK, a line each."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return "".join(f"{digests.of_file(folder / name, digests.FULL)}  {name}\n" for name in names if name != MARK)


def make_room(checkpoints: Path) -> Path:
    """A new folder for the files of a checkpoint; temporary folders of killed processes are removed."""
    temporary = checkpoints / TEMPORARY
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


@contextlib.contextmanager
def completed(temporary: Path, checkpoints: Path, step: int) -> Iterator[None]:
    """Context in which all ranks write a checkpoint into the folder ``temporary``; UserError if they cannot.

    At its end the folder gets checksums, is flushed to disk and renamed to that of its step. The two newest are kept.
    """
    folder = checkpoints / f"step{step:05d}"

    def finish() -> None:
        (temporary / MARK).write_text(_checksums(temporary))
        for path in (*filter(Path.is_file, temporary.rglob("*")), temporary):
            flush(path)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        flush(checkpoints)
        remove_old(checkpoints, KEEP)

    try:
        yield
        on_rank_0(finish)
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk is any of these
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"{folder}: the checkpoint cannot be written: {error}. Older ones are unchanged.") from error


def remove_old(checkpoints: Path, newest: int) -> None:
    for old in _newest_first(checkpoints)[newest:]:
        shutil.rmtree(old, ignore_errors=True)


def _newest_first(checkpoints: Path) -> list[Path]:
    return sorted(checkpoints.glob("step*"), key=lambda path: (len(path.name), path.name), reverse=True)


def resume_logs(run: RunFolder, step: int) -> None:
    """Keep the lines of the steps before ``step`` in both files, by rank 0. UserError if one is missing."""
    if not is_rank_0():
        return
    remedy = f"Remove the folder {run.path} to train the run from its beginning."
    for path in (run.metrics, run.timings):
        rows = [row for _, row in itertools.islice(json_lines(path, remedy), step)] if path.exists() else []
        if [row.get("step") for row in rows] != [*range(step)]:
            raise UserError(f"{path}: has not a line for each step before its checkpoint, of step {step}. {remedy}")
        atomic_text(path, "".join(map(line, rows)))


def flush_logs(run: RunFolder) -> None:
    if is_rank_0():
        flush(run.metrics)
        flush(run.timings)


def append(path: Path, row: Mapping[str, Any]) -> None:
    if not is_rank_0():
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line(row))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Free space, run again: it resumes.") from error


def line(row: Mapping[str, Any]) -> str:
    """``row`` as a line of these files; NaN and infinity, which JSON does not have, are null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
