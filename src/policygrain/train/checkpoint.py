"""What a run resumes from: checkpoints, written in the background, and the logs of its steps; a lock on its folder."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils._pytree import tree_leaves, tree_map

from .. import digests
from ..errors import UserError
from ..files import atomic_text, flush, lock
from ..model.rollout import Rollout
from ..objective.batch import TokenBatch
from ..paths import RunFolder
from .batch import Batch
from .ranks import is_rank_0, on_rank_0

KEEP = 2
WAIT_IN_JOBS = 120.0  # seconds; schedulers kill a job about 30 seconds after its termination signal
SAVED_TYPES: list[Any] = [Batch, Rollout, TokenBatch]  # the only types, besides tensors and numbers, of a checkpoint
STATE, MARK = "state.pt", "sha256"  # MARK has the format of `sha256sum` and is written last


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Lock the run directory. The kernel releases the lock when its process ends, so it is never stale.

    A scheduler may restart a job before the previous attempt has ended, so a batch job waits for a while. Of several
    ranks, rank 0 holds the lock for all.
    """
    if not is_rank_0():
        yield
        return
    wait = WAIT_IN_JOBS if "SLURM_JOB_ID" in os.environ else 0.0
    with lock(run_dir / "lock", "another process is training here; wait for it, or choose another --run-dir", wait):
        yield


class Writer:
    """Context that writes checkpoints into a folder, one at a time, beside what its thread does meanwhile.

    At its end the last checkpoint is complete. An error of writing is raised by the next call.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.wait()
        elif self._thread is not None:  # an error that is raised already is shown
            self._thread.join()

    def save(self, step: int, parts: Mapping[str, Any], counters: Mapping[str, Any]) -> None:
        """Copy the state of ``parts``, objects with a `state_dict`, and write it as the folder `stepNNNNN`.

        It is written under a temporary name, flushed to disk, then renamed. The two newest checkpoints are kept.
        """
        self.wait()
        state = {name: part.state_dict() for name, part in parts.items()} | dict(counters)
        size = sum(value.nbytes for value in tree_leaves(state) if isinstance(value, torch.Tensor))
        if 2 * size > _available_memory():  # pinned memory is taken in powers of two
            self._write(step, state)
            self.wait()
            return
        state = _on_host(state)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies are complete before an update changes what they copy
        self._thread = threading.Thread(target=self._write, args=(step, state), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the last checkpoint is complete. Raises the error if it could not be written, usually a UserError."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error

    def _write(self, step: int, state: dict[str, Any]) -> None:
        try:
            with explained(self.checkpoints, step):
                temporary = make_room(self.checkpoints)
                torch.save(state, temporary / STATE)
                finish(temporary, self.checkpoints, step)
        except BaseException as error:
            self._error = error


def _available_memory() -> int:
    """Bytes of host memory that a process can take without swapping."""
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

    copied: dict[str, Any] = tree_map(copy, state)
    return copied


def load_newest(checkpoints: Path, parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Load the newest complete checkpoint into ``parts`` and return its counters; None if there is none.

    Incomplete checkpoints are skipped with a message.
    """
    folder = newest_complete(checkpoints)
    if folder is None:
        return None
    state = load_state(folder)
    for name, part in parts.items():
        part.load_state_dict(state.pop(name))
    return state


def load_state(folder: Path) -> dict[str, Any]:
    """The state in the checkpoint ``folder``, tensors on the CPU. UserError if it cannot be loaded."""
    try:
        with torch.serialization.safe_globals(SAVED_TYPES):
            state: dict[str, Any] = torch.load(folder / STATE, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, FileNotFoundError) as error:
        # torch's own message recommends to load the file without this check.
        raise UserError(
            f"{folder / STATE}: this checkpoint cannot be loaded: it is damaged, or contains objects other than "
            f"tensors, numbers and batches, which could execute code. Remove {folder}; the run then continues from the "
            "checkpoint before it."
        ) from error
    return state


def newest_complete(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files match their checksums; others are skipped with a message."""
    for folder in sorted(checkpoints.glob("step*"), reverse=True):
        with contextlib.suppress(OSError):
            sums = (folder / MARK).read_bytes()
            if sums and sums == _checksums(folder).encode():
                return folder
        print(f"{folder}: skipped, its content does not match its checksums.", file=sys.stderr)
    return None


def _checksums(folder: Path) -> str:
    """The digest and name of each file in ``folder`` except MARK, a line each."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return "".join(f"{digests.of_file(folder / name, digests.FULL)}  {name}\n" for name in names if name != MARK)


def make_room(checkpoints: Path) -> Path:
    """A new folder for the files of a checkpoint; temporary folders of killed processes are removed."""
    for stale in checkpoints.glob(".step*"):
        shutil.rmtree(stale, ignore_errors=True)
    temporary = checkpoints / ".step"
    temporary.mkdir(parents=True)
    return temporary


def finish(temporary: Path, checkpoints: Path, step: int) -> None:
    """Write checksums, flush the temporary folder, rename it to that of its step, and remove older checkpoints."""
    folder = checkpoints / f"step{step:05d}"
    (temporary / MARK).write_text(_checksums(temporary))
    for path in (*(path for path in temporary.rglob("*") if path.is_file()), temporary):
        flush(path)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    flush(checkpoints)
    remove_old(checkpoints, KEEP)


def remove_old(checkpoints: Path, newest: int) -> None:
    """Remove all checkpoints except the ``newest`` ones."""
    folders = sorted(checkpoints.glob("step*"))
    for old in folders[: max(0, len(folders) - newest)]:
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def explained(checkpoints: Path, step: int) -> Iterator[None]:
    """Turn errors of writing into a UserError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk is any of these
        shutil.rmtree(checkpoints / ".step", ignore_errors=True)
        raise UserError(
            f"{checkpoints / f'step{step:05d}'}: the checkpoint cannot be written: {error}. Older checkpoints are "
            "unchanged."
        ) from error


def resume_logs(run: RunFolder, step: int) -> None:
    """Keep the lines of the steps before ``step``. UserError if one is missing.

    `metrics.jsonl` has a line per step that the seed determines, `timings.jsonl` one that is not reproducible.
    """
    for path in (run.metrics, run.timings):
        on_rank_0(functools.partial(_truncate, path, step))


def flush_logs(run: RunFolder) -> None:
    """Flush both files to disk, before a checkpoint is written."""
    for path in (run.metrics, run.timings):
        if is_rank_0() and path.exists():
            flush(path)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line to `metrics.jsonl` or `timings.jsonl`, by rank 0."""
    if not is_rank_0():
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line(row))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}. Free some space and run the command again: it resumes."
        ) from error


def line(row: Mapping[str, Any]) -> str:
    """``row`` as a line of these files; NaN and infinity, which JSON does not have, are null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"


def _truncate(path: Path, resume_at: int) -> None:
    """Remove the lines of steps from ``resume_at`` on, which are repeated. UserError if an earlier line is missing."""
    lines = path.read_bytes().splitlines()[:resume_at] if path.exists() else []
    for step in range(resume_at):
        try:
            recorded_step = json.loads(lines[step].decode("utf-8"))["step"]
        except (IndexError, ValueError, KeyError, TypeError, RecursionError):
            recorded_step = None
        if recorded_step != step:
            raise UserError(
                f"{path}: line {step + 1} is not step {step}, but there is a checkpoint of step {resume_at}: lines "
                f"were lost. Remove the folder {path.parent} to train the run from its beginning."
            )
    atomic_text(path, "".join(line.decode("utf-8") + "\n" for line in lines))
