"""Opens the engine that samples: vLLM, or transformers in this process."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distributions, version
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError
from .device import compute_name
from .engine import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve_engine(name: str) -> str:
    """The engine that ``name`` stands for: with `auto` vLLM if it is installed, else transformers.

    This depends on the environment, not on the machine: jobs with and without a GPU choose the same engine.
    UserError if ``name`` is `vllm` and vLLM is not installed.
    """
    has_vllm = importlib.util.find_spec("vllm") is not None
    if name == "vllm" and not has_vllm:
        raise UserError("engine: vllm is not installed here; run `make setup`, or set the engine to transformers.")
    return ("vllm" if has_vllm else "transformers") if name == "auto" else name


_running: list[tuple[Any, Engine]] = []  # at most one: the settings of this process's vLLM engine, and the engine


def open_engine(
    name: str,
    start: str,
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    revision: str | None = None,
    kv_gib: float | None = None,
    colocated: bool = False,
    tokens: int | None = None,
) -> Engine:
    """The engine ``name`` with the weights of ``model``, which was loaded from ``start``.

    ``colocated``: the engine shares the GPU with a trainer of ``model``: it uses the same precision and can sleep.
    ``tokens``: of all prompts and responses that are sampled at once; a cache of another size is set by ``kv_gib``.
    A process has one vLLM engine, which takes the weights of other models of the same shape, since a start takes long.
    """
    if resolve_engine(name) == "transformers":
        from .torch_engine import TorchEngine

        return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
    check_vllm_runs_here()
    from .vllm_engine import VllmEngine

    dtype = compute_name(model) if colocated else None
    settings: dict[str, Any] = {"revision": revision, "dtype": dtype, "kv_gib": kv_gib, "tokens": tokens}
    # Keys with an underscore say where the model was loaded from.
    shape = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    for opened_for, engine in _running:
        if opened_for == (shape, colocated, settings):
            engine.load_weights(model)
            return engine
    if _running and colocated and torch.cuda.is_available():
        raise UserError(
            "engine: only one vLLM engine with sleep mode is possible per process, and this process has one already."
        )
    _running.clear()
    _running.append(((shape, colocated, settings), VllmEngine(start, colocated=colocated, **settings)))
    return _running[0][1]


def check_vllm_runs_here() -> None:
    """UserError if the CUDA build of vLLM is installed and no GPU is visible. The CPU build is another package."""
    names = {distribution.name for distribution in distributions() if distribution.name.startswith("vllm")}
    if names == {"vllm"} and "cpu" not in version("vllm") and not torch.cuda.is_available():
        raise UserError(
            "engine: the installed vLLM is the CUDA build, and no GPU is visible here. Request a GPU (on a cluster "
            "`gpu: 1` in slurm/config.yaml), set the engine to transformers, or run `make setup FLAVOUR=cpu`."
        )
