"""The device that models compute on, and its errors as messages for users."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import Stopped, UserError

if TYPE_CHECKING:
    import torch

    from ..study.schema import Training

OUT_OF_MEMORY = re.compile(r"out of memory|can(no|.?)t allocate|not enough memory|CUBLAS_STATUS_ALLOC_FAILED", re.I)
# Errors of the machine. Others, such as an illegal memory access, are errors of a program and would occur again.
LOST = re.compile(
    r"(CUDA|NVML|GPU).*(uncorrectable|is lost|off the bus|busy or unavailable|unknown error)", re.I | re.S
)


def device() -> torch.device:
    """The device that models compute on: this process's GPU if there is one, else the CPU."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


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
