"""The precision of forward and backward passes, which may be lower than that of the weights.

Weights, accumulated gradients and optimizer states stay in the model's own precision, log-probabilities are computed
in float32, under autocast.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from ..errors import UserError
from .device import device

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve_compute(compute: str, weights: str = "float32") -> torch.dtype:
    """The precision of passes that `training.compute` stands for on this machine; `auto` is bfloat16 where it is fast.

    ``weights``: the precision of the weights, which passes cannot exceed.
    """
    if compute == "auto":
        compute = "bfloat16" if has_fast_bfloat16() else "float32"
    requested: torch.dtype = getattr(torch, compute)
    if requested == torch.bfloat16 and device().type == "cuda" and not has_fast_bfloat16():
        raise UserError(
            f"training.compute: {torch.cuda.get_device_name()} has no bfloat16. Set it to float16 or float32, or auto."
        )
    held: torch.dtype = getattr(torch, weights)
    return held if torch.finfo(requested).bits > torch.finfo(held).bits else requested


def has_fast_bfloat16() -> bool:
    """Whether this process's GPU or CPU multiplies bfloat16 matrices in hardware (on x86: AMX or AVX-512 BF16)."""
    if device().type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16"))


def set_compute_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Set the precision of the passes of ``model``, see `compute_dtype` and `forward_precision`."""
    model.policygrain_compute_dtype = dtype  # type: ignore[assignment]


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """The precision of the model's passes: that of its weights unless another was set."""
    dtype: torch.dtype = getattr(model, "policygrain_compute_dtype", None) or model.dtype
    return dtype


def compute_name(model: PreTrainedModel) -> str:
    """The precision of the model's passes by name, such as `bfloat16`."""
    return str(compute_dtype(model)).removeprefix("torch.")


def forward_precision(model: PreTrainedModel) -> AbstractContextManager[object]:
    """Context of the layers' forward pass: autocast if its precision differs from that of the weights."""
    dtype = compute_dtype(model)
    if dtype == model.dtype:
        return nullcontext()
    return torch.autocast(device().type, dtype)
