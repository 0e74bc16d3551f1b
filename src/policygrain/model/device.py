"""The device that models compute on, and its errors as messages for users."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..errors import Stopped, UserError

if TYPE_CHECKING:
    import torch

    from ..study.schema import Training

CLAIM = "POLICYGRAIN_GPU"  # number of the GPU that this process, or one that started it, has taken
SPARE = 0.1  # share of a GPU's memory that stays free: later updates may need more
_updates_made = threading.Event()
_locks: list[IO[str]] = []  # locked until the process ends
OUT_OF_MEMORY = re.compile(r"out of memory|can(no|.?)t allocate|not enough memory|CUBLAS_STATUS_ALLOC_FAILED", re.I)
# Errors of the machine. Others, such as an illegal memory access, are errors of a program and would occur again.
LOST = re.compile(
    r"(CUDA|NVML|GPU).*(uncorrectable|is lost|off the bus|busy or unavailable|unknown error)", re.I | re.S
)


def device() -> torch.device:
    """The device that models compute on: this process's GPU if there is one, else the CPU."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    if (number := claimed_gpu(torch.cuda.device_count())) is not None:
        torch.cuda.set_device(number)
    return torch.device("cuda", torch.cuda.current_device())


@cache
def claimed_gpu(count: int, folder: Path | None = None) -> int | None:
    """Take one of the ``count`` visible GPUs for this process and those that it starts, and wait while none is free.

    Jobs that Snakemake starts side by side would otherwise share a GPU, and the second engine would find no memory.
    None for ranks of one run, which have a GPU each from their launcher.
    """
    if "LOCAL_RANK" in os.environ:
        return None
    if CLAIM in os.environ:
        return int(os.environ[CLAIM])
    folder = folder or Path(tempfile.gettempdir())
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible if len(visible) == count else [str(number) for number in range(count)]
    waits = False
    while True:
        for number, name in enumerate(names):
            file = (folder / f"policygrain-{os.getuid()}-gpu-{name}.lock").open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            _locks.append(file)
            os.environ[CLAIM] = str(number)
            return number
        if not waits:
            print(f"waiting for a GPU: other jobs of yours use all of them ({count}).", file=sys.stderr, flush=True)
        waits = True
        time.sleep(1)


def updates_are_made() -> None:
    """From now on the allocator holds the most memory that updates of this process have needed."""
    _updates_made.set()


def fits_beside_updates(size: int) -> bool:
    """Whether ``size`` more bytes of GPU memory can stay in use during updates. False before the first ones."""
    import torch

    if not _updates_made.is_set() or not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    return free > size + SPARE * total


@contextmanager
def device_errors(settings: Training) -> Iterator[None]:
    """Context in which too little memory is a UserError with the settings to change, and a lost GPU is `Stopped`."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().split("\n")[0]
        if OUT_OF_MEMORY.search(str(error)):
            raise UserError(f"too little memory: {first} {_remedies(settings)} The same command resumes.") from error
        if LOST.search(str(error)):
            node = os.environ.get("SLURMD_NODENAME", platform.node())
            raise Stopped(
                f"the GPU of {node} failed: {first} The run continues from its last checkpoint; if it fails there "
                f"again, leave this machine out (sbatch --exclude={node})."
            ) from error
        raise


def _remedies(settings: Training) -> str:
    """Settings that need less memory and are not set yet; the first ones do not change results."""
    ways = [f"lower training.micro_batch_tokens ({settings.micro_batch_tokens})"]
    if not settings.activation_checkpointing:
        ways.append("set training.activation_checkpointing")
    if settings.engine == "vllm":
        ways.append("lower training.kv_gib, the engine's cache")
    if not settings.trl.get("fsdp"):
        ways.append("shard the policy over several GPUs (training.trainer: trl with fsdp, docs/training.md)")
    ways.append("train an adapter (model.lora) or weights in bfloat16 (model.dtype)")
    text = ", ".join(ways[:-1])
    return f"{text[0].upper()}{text[1:]}, or {ways[-1]}."
