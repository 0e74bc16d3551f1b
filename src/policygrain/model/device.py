"""The device that models compute on, and its errors as messages for users."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import Stopped, UserError

if TYPE_CHECKING:
    import torch

    from ..study.schema import Training

# A driver of another CUDA than torch's; other reasons for which torch sees no GPU mean that there is none.
OTHER_CUDA = re.compile(
    r"driver.*too old|forward compatibility|unsupported .*driver|driver version is insufficient", re.I
)
OUT_OF_MEMORY = re.compile(r"out of memory|can(no|.?)t allocate|not enough memory|CUBLAS_STATUS_ALLOC_FAILED", re.I)
# Errors of the machine. Others, such as an illegal memory access, are errors of a program, which another try repeats.
LOST = re.compile(
    r"(CUDA|NVML|GPU).*(uncorrectable|is lost|off the bus|busy or unavailable|unknown error)", re.I | re.S
)
GIB = 2**30


def device() -> torch.device:
    """The device that models compute on: this process's GPU if there is one, else the CPU.

    UserError if there is a GPU that this torch was not built for.
    """
    import torch

    _check_cuda()
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@functools.cache
def _check_cuda() -> None:
    import torch

    if torch.version.cuda is None:
        return
    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except RuntimeError as error:
            if OTHER_CUDA.search(str(error)):
                raise UserError(
                    f"{built}, and this machine's driver is for another ({str(error).splitlines()[0]}). Update the "
                    "driver, install torch for its CUDA, or set CUDA_VISIBLE_DEVICES= to compute without the GPU."
                ) from error
        return
    capability, has = torch.cuda.get_device_capability(), torch.cuda.get_arch_list()
    if not supports(has, capability):
        raise UserError(
            f"{built} and for GPUs of {', '.join(has)}; {torch.cuda.get_device_name()} is "
            f"sm_{capability[0]}{capability[1]}. Install a torch that supports it, or set "
            "CUDA_VISIBLE_DEVICES= to compute without it."
        )


def supports(built_for: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether code for these architectures runs on a GPU of this compute capability.

    Binary code (`sm_90`) runs on GPUs of the same major version and at least its minor version, that of one
    architecture (`sm_90a`) on no other, and PTX (`compute_90`) on all later ones.
    """
    for name in built_for:
        kind, number, only = re.fullmatch(r"(sm|compute)_(\d+)([a-z]?)", name).groups()  # type: ignore[union-attr]
        version = divmod(int(number), 10)
        if only == "a":
            fits = version == capability
        elif kind == "sm" or only == "f":  # of its family: the same major version
            fits = version[0] == capability[0] and version[1] <= capability[1]
        else:
            fits = version <= capability
        if fits:
            return True
    return False


@contextmanager
def device_errors(settings: Training, states: int | None = None) -> Iterator[None]:
    """Context in which too little memory is a UserError that says which setting to change, and a lost GPU is `Stopped`.

    ``states``: bytes of the policy's weights, gradients and optimizer states on this device, where they are known.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if OUT_OF_MEMORY.search(text):
            raise UserError(_too_little(text, settings, states)) from error
        if LOST.search(text):
            node = os.environ.get("SLURMD_NODENAME", platform.node())
            raise Stopped(
                f"the GPU of {node} failed: {text.strip().splitlines()[0]} The run continues from its last checkpoint; "
                f"if it fails there again, leave this machine out (sbatch --exclude={node})."
            ) from error
        raise


def _too_little(text: str, settings: Training, states: int | None) -> str:
    requested = _requested_bytes(text)
    total, peak = _memory() if "CUDA" in text or "CUBLAS" in text else (None, 0)
    message = f"too little memory: {requested / GIB:.2f} GiB more were requested" if requested else "too little memory"
    if total:
        message += f", of {total / GIB:.1f} GiB in all"
    if states is None:
        return f"{message}, while the policy was loaded. {_smaller(settings)}"
    message += f"; weights, gradients and optimizer states take {states / GIB:.1f} GiB"
    tokens = settings.micro_batch_tokens
    # Activations grow with the tokens of a pass. At the failed allocation, memory in use besides the states was less
    # than a whole pass needs, so this is an upper bound of what fits.
    room, needed = (total or 0) - states, peak - states + requested
    if total and room < 0.1 * total:
        return f"{message}. {_smaller(settings)}"
    most = tokens * room / needed if total and needed > room > 0 else tokens / 2
    message += f". Lower training.micro_batch_tokens from {tokens} to {_rounded(min(most, tokens / 2))} or less"
    alternatives = []
    if not settings.activation_checkpointing:
        alternatives.append("set training.activation_checkpointing")
    if settings.engine == "vllm":
        alternatives.append("lower training.kv_gib, the engine's cache")
    if settings.trainer == "policygrain":
        alternatives.append("shard the policy over several GPUs (training.trainer: trl, docs/training.md)")
    return f"{message}{''.join(f', or {way}' for way in alternatives)}. The same command resumes."


def _smaller(settings: Training) -> str:
    """Settings not yet in use that make the policy and its states smaller."""
    ways = []
    if not settings.trl.get("fsdp"):
        ways.append("shard the policy over several GPUs (training.trainer: trl with fsdp, docs/training.md)")
    ways.append("train an adapter (model.lora), or set model.dtype to bfloat16, where they are not set")
    text = ", ".join(ways)
    return f"{text[0].upper()}{text[1:]}."


def _rounded(tokens: float) -> int:
    """The next power of two below."""
    return 1 << max(0, int(tokens).bit_length() - 1)


def _requested_bytes(text: str) -> int:
    """Bytes of the failed allocation, from torch's message; 0 if it has no number."""
    if match := re.search(r"[Tt]ried to allocate ([\d.]+) ?([KMGT]i?B|bytes)", text):
        scale = {"b": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[match[2][0]]
        return int(float(match[1]) * scale)
    return 0


def _memory() -> tuple[int | None, int]:
    """(bytes of this process's GPU in all, the most that torch has used of them); (None, 0) without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None, 0
    return int(torch.cuda.mem_get_info()[1]), int(torch.cuda.max_memory_allocated())
