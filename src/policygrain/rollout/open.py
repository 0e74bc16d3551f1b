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
        dtype = str(precision(model)).removeprefix("torch.") if colocated else None
        return _vllm(model, start, revision, dtype, kv_gib, colocated)
    from .torch_engine import TorchEngine

    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)


_running: list[tuple[Any, Engine]] = []  # vLLM's engine in this process, and what it was opened for


def _vllm(model: PreTrainedModel, start: str, *settings: Any) -> Engine:
    """One engine in a process: whoever has a model of the same shape takes it over, which is quicker than a start."""
    from .vllm_engine import VllmEngine

    # Without where it was loaded from.
    shape = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    for opened_for, engine in _running:
        if opened_for == (shape, settings):
            engine.load_weights(model)
            return engine
    _running.clear()
    _running.append(((shape, settings), VllmEngine(start, *settings)))
    return _running[0][1]
