"""Loading a causal model and its tokenizer from a folder or a hub."""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .device import device

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FUSED = ("llama", "qwen2", "qwen3")  # architectures whose norms are plain RMS norms


def load_model(
    start: str, revision: str | None = None, dtype: str = "float32", place: torch.device | None = None
) -> tuple[PreTrainedModel, Any]:
    """A causal model on the device ``place`` (None: `device()`) and its tokenizer, set up for padding.

    UserError if they cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(start, revision)
    with _readable(start):
        model = AutoModelForCausalLM.from_pretrained(start, revision=revision, dtype=getattr(torch, dtype))
    model.to(place or device())  # type: ignore[arg-type]
    if torch.cuda.is_available():
        fuse_layers(model)
    gc.enable()
    return model, tokenizer


def fuse_layers(model: PreTrainedModel, by_liger: bool | None = None) -> None:
    """Norms, rotary embeddings and SwiGLU as fused kernels for a GPU: by Liger if it is installed, else norms alone.

    Each operation of transformers' own layers reads and writes all activations. Other architectures stay as they are.
    """
    if model.config.model_type not in FUSED:
        return
    if importlib.util.find_spec("liger_kernel") is not None if by_liger is None else by_liger:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
        return
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            weight = module.weight
            module.forward = partial(_rms_norm, weight, module.variance_epsilon)  # type: ignore[method-assign]


def _rms_norm(weight: torch.nn.Parameter, eps: float, x: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import rms_norm

    return rms_norm(x, weight.shape, weight, eps)


def recompute_layers(model: PreTrainedModel) -> None:
    """Activation checkpointing: layers keep only their input and are recomputed in the backward pass (1/3 slower)."""
    from torch.utils.checkpoint import checkpoint

    from .packing import recompute_contexts

    contexts = partial(recompute_contexts, model)
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            how: Any = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": contexts}
            module.forward = partial(checkpoint, module.forward, **how)


def load_tokenizer(start: str, revision: str | None = None) -> Any:
    """The tokenizer, with a padding token. UserError if it cannot be loaded or has no end-of-sequence token."""
    with _readable(start):
        tokenizer = _tokenizer_class(Path(start)).from_pretrained(start, revision=revision)
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {start!r}: its tokenizer has no end-of-sequence token.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def context_length(start: str) -> int:
    """The model's context length: tokens of prompt and response together."""
    from transformers import AutoConfig

    with _readable(start):
        return int(AutoConfig.from_pretrained(start).max_position_embeddings)


@contextmanager
def _readable(start: str) -> Iterator[None]:
    """Turn any exception of transformers, safetensors or the hub client into a UserError that names the model."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"model {start!r} cannot be loaded: {reason} It must be a folder or hub name with a causal model."
        ) from error


def _tokenizer_class(folder: Path) -> Any:
    """AutoTokenizer, or PreTrainedTokenizerFast for a folder whose tokenizer_config.json names that class.

    For some architectures, qwen2 among them, AutoTokenizer ignores that name and takes the architecture's own class,
    which splits text differently: the same file would silently give other tokens than the model was trained with.
    Tiny models built by earlier versions are such folders.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").exists() and config.exists():
        name = json.loads(config.read_text()).get("tokenizer_class")
        if name in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            return PreTrainedTokenizerFast
    return AutoTokenizer
