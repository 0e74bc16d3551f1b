"""Choosing an engine."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..model.sharding import precision
from .engine import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve_engine(name: str) -> str:
    """`auto` → vLLM where it is installed, else transformers. UserError when vllm is asked for and not there."""
    has_vllm = importlib.util.find_spec("vllm") is not None
    if name == "vllm" and not has_vllm:
        raise UserError("engine: vllm is not installed here; run `make setup`, or set the engine to transformers.")
    return ("vllm" if has_vllm else "transformers") if name == "auto" else name


def open_engine(
    name: str,
    start: str,
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    revision: str | None = None,
    kv_gib: float | None = None,
    colocated: bool = False,
) -> Engine:
    """The engine called ``name`` with the weights of ``model``, which were loaded from ``start``.

    ``colocated``: it samples for the training of ``model``, in the same precision, and its memory can be had back.
    """
    if resolve_engine(name) == "vllm":
        from .vllm_engine import VllmEngine

        dtype = str(precision(model)).removeprefix("torch.") if colocated else None
        return VllmEngine(start, revision, dtype, kv_gib, colocated)
    from .torch_engine import TorchEngine

    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
