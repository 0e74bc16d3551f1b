"""The device that models compute on, the precision of their passes, and errors of the device as messages for users."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch

from ..errors import UserError
from .small import LanguageModel

if TYPE_CHECKING:
    from ..study.schema import Training

CLAIM = "POLICYGRAIN_GPU"  # the GPU that this process, or one that started it, has taken
SPARE = 0.1  # share of a GPU's memory that stays free: later updates may need more
_peak: list[int] = []  # bytes that torch's allocator held after updates, at most so far
_locks: list[IO[str]] = []  # locked until the process ends
OUT_OF_MEMORY = re.compile(r"out of memory|can(no|.?)t allocate|not enough memory|CUBLAS_STATUS_ALLOC_FAILED", re.I)
LOST = re.compile(r"CUDA error: .*(unavailable|lost|uncorrectable|ECC|unknown error|hardware|no CUDA-capable)", re.I)
REMEDIES = (  # the first ones do not change results
    "Lower training.micro_batch_tokens ({}) or training.kv_gib (vLLM's cache), set training.activation_checkpointing, "
    "shard the policy over several GPUs (training.trainer: trl with fsdp, docs/trainers.md), or train an adapter "
    "(model.lora) or weights in bfloat16 (model.dtype). The same command resumes."
)


def device() -> torch.device:
    """The device that models compute on: this process's GPU if there is one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def claim_gpu(folder: Path = Path("/tmp")) -> None:
    """Take one of the visible GPUs for this process and those that it starts, and wait while none is free.

    Jobs that Snakemake starts side by side would otherwise share a GPU, and the second engine would find no memory.
    Called before CUDA is initialised, which reads what is visible. UserError if torch cannot use a GPU that is there.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return
    if not (CLAIM in os.environ or "LOCAL_RANK" in os.environ):  # ranks have theirs from their launcher
        _claim(folder)
    of_job = "SLURM_JOB_GPUS" in os.environ
    if (of_job or CLAIM in os.environ) and not torch.cuda.is_available():
        if torch.version.cuda is None and not of_job:
            print("note: torch is its build for CPUs; `make setup FLAVOUR=gpu` uses the GPU.", file=sys.stderr)
            return
        build = "CPUs" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
        raise UserError(
            f"there is a GPU, and torch {torch.__version__}, a build for {build}, cannot use it. Update the NVIDIA "
            "driver, or `make setup FLAVOUR=gpu`. To compute on the CPU, set CUDA_VISIBLE_DEVICES to nothing."
        )


def _claim(folder: Path) -> None:
    names, waits = visible_gpus(), False
    while names:
        for name in names:
            file = (folder / f"policygrain-{os.getuid()}-{name}.lock").open("a")
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _locks.append(file)
                os.environ |= {CLAIM: name, "CUDA_VISIBLE_DEVICES": name}
                return
            file.close()
        if not waits:
            print(f"waiting for a GPU: other jobs of yours use all {len(names)}.", file=sys.stderr, flush=True)
        waits = True
        time.sleep(1)


def visible_gpus() -> list[str]:
    """The names of the GPUs that CUDA_VISIBLE_DEVICES leaves: unlike numbers they are the same in all jobs."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return found
    wanted = [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    return [found[int(name)] if name.isdecimal() and int(name) < len(found) else name for name in wanted if name]


def updates_are_made() -> None:
    if torch.cuda.is_available():
        _peak.append(max([torch.cuda.memory_reserved(), *_peak[-1:]]))


def fits_beside_updates(size: int) -> bool:
    """Whether ``size`` more bytes of GPU memory can stay in use during updates. False before the first ones."""
    if not _peak:
        return False
    free, total = torch.cuda.mem_get_info()
    given_back = max(0, _peak[-1] - torch.cuda.memory_reserved())  # which updates will need again
    return free - given_back > size + SPARE * total


def resolve_compute(compute: str, weights: str = "float32") -> torch.dtype:
    """The precision of passes that `training.compute` stands for on this machine, at most that of the ``weights``."""
    if compute == "auto":
        compute = "bfloat16" if has_fast_bfloat16() else "float32"
    requested, held = getattr(torch, compute), getattr(torch, weights)
    if requested == torch.bfloat16 and device().type == "cuda" and not has_fast_bfloat16():
        name = torch.cuda.get_device_name()
        raise UserError(f"training.compute: {name} has no bfloat16. Set it to float32, or auto.")
    return held if torch.finfo(requested).bits > torch.finfo(held).bits else requested


def has_fast_bfloat16() -> bool:
    """Whether this process's GPU or CPU multiplies bfloat16 matrices in hardware (on x86: AMX or AVX-512 BF16)."""
    if device().type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))


def set_compute_dtype(model: LanguageModel, dtype: torch.dtype) -> None:
    model.policygrain_compute_dtype = dtype  # type: ignore[assignment]


def compute_dtype(model: LanguageModel) -> torch.dtype:
    """The precision of the model's passes: that of its weights unless another was set."""
    return getattr(model, "policygrain_compute_dtype", None) or model.dtype


def compute_name(model: LanguageModel) -> str:
    return str(compute_dtype(model)).removeprefix("torch.")


def forward_precision(model: LanguageModel) -> AbstractContextManager[object]:
    """Context of the layers' forward pass: autocast if its precision differs from that of the weights."""
    dtype = compute_dtype(model)
    return nullcontext() if dtype == model.dtype else torch.autocast(device().type, dtype)


@contextmanager
def gpu_errors(settings: Training) -> Iterator[None]:
    """Context in which too little memory is a UserError with the settings to change, and so is a GPU that fails."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().split("\n")[0]
        if OUT_OF_MEMORY.search(str(error)):
            raise UserError(f"too little memory: {first} {REMEDIES.format(settings.micro_batch_tokens)}") from error
        if LOST.search(first):
            raise UserError(
                f"the GPU failed ({first}). The same command resumes from the last checkpoint, where a GPU works; "
                "`nvidia-smi` and `dmesg` show the state of this one."
            ) from error
        raise
