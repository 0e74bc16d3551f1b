"""Choosing an engine."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distributions, version
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from ..errors import UserError
from ..model.sharding import precision
from .engine import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve_engine(name: str) -> str:
    """`auto` → vLLM where it is installed, else transformers. UserError when vllm is asked for and not there.

    It is no matter of the machine: jobs of one environment, with a GPU or without, mean the same engine.
    """
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
        reserved = moments(model) if colocated else 0
        return _vllm(model, start, colocated, revision=revision, dtype=dtype, kv_gib=kv_gib, reserved=reserved)
    from .torch_engine import TorchEngine

    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)


def check_vllm_runs_here() -> None:
    """UserError for vLLM's CUDA build on a machine that shows no GPU. Its CPU build is a package of another name."""
    if torch.cuda.is_available() or importlib.util.find_spec("vllm") is None:
        return
    names = {found.name for found in distributions() if found.name.startswith("vllm")}
    if names == {"vllm"} and "cpu" not in version("vllm"):
        raise UserError(
            "engine: the vLLM that is installed is the CUDA build, and this machine shows no GPU. Ask for one (on a "
            "cluster `gpu: 1` in slurm/config.yaml), set the engine to transformers, or `make setup FLAVOUR=cpu`."
        )


def moments(model: PreTrainedModel) -> int:
    """Bytes that AdamW will keep beside this process's share of the trained weights."""
    trained = (p for p in model.parameters() if p.requires_grad)
    local = (p.to_local() if isinstance(p, DTensor) else p for p in trained)
    return sum(2 * p.numel() * p.element_size() for p in local)


_running: list[tuple[Any, Engine]] = []  # vLLM's engine in this process, and what it was opened for


def _vllm(model: PreTrainedModel, start: str, colocated: bool, **settings: Any) -> Engine:
    """One engine in a process: whoever has a model of the same shape takes it over, which is quicker than a start."""
    check_vllm_runs_here()
    from .vllm_engine import VllmEngine

    # Without where it was loaded from.
    shape = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    for opened_for, engine in _running:
        if opened_for == (shape, colocated, settings):
            engine.load_weights(model)
            return engine
    if _running and colocated and torch.cuda.is_available():
        raise UserError("engine: a process can have one vLLM that gives its memory back, and this one has another.")
    _running.clear()
    _running.append(((shape, colocated, settings), VllmEngine(start, colocated=colocated, **settings)))
    return _running[0][1]
