"""Loading a causal model and its tokenizer from a folder or a hub."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def device() -> torch.device:
    """Where models compute: on this process's GPU, where there is one."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def load_model(
    start: str, revision: str | None = None, dtype: str = "float32", place: torch.device | None = None
) -> tuple[PreTrainedModel, Any]:
    """Model, at ``place`` (None: where it computes), and tokenizer, with padding set up for generation.

    UserError when they cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(start, revision)
    with _readable(start):
        model = AutoModelForCausalLM.from_pretrained(start, revision=revision, dtype=getattr(torch, dtype))
    model.to(place or device())  # type: ignore[arg-type]
    gc.enable()
    return model, tokenizer


def recompute_layers(model: PreTrainedModel) -> None:
    """Layers keep only their input for the backward pass, and compute the rest again: memory for a third more time."""
    from torch.utils.checkpoint import checkpoint

    from .packing import recompute_contexts

    contexts = partial(recompute_contexts, model)
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            how: Any = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": contexts}
            module.forward = partial(checkpoint, module.forward, **how)


def load_tokenizer(start: str, revision: str | None = None) -> Any:
    """The tokenizer alone. UserError when it cannot be read; padding is set up for generation."""
    with _readable(start):
        tokenizer = _tokenizer_class(Path(start)).from_pretrained(start, revision=revision)
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {start!r}: its tokenizer has no end-of-sequence token.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def context_length(start: str) -> int:
    """Longest prompt and response together, in tokens."""
    from transformers import AutoConfig

    with _readable(start):
        return int(AutoConfig.from_pretrained(start).max_position_embeddings)


@contextmanager
def _readable(start: str) -> Iterator[None]:
    """transformers, safetensors and the hub raise what they like for a broken folder: here it is one message."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"model {start!r} cannot be loaded: {reason} It must be a folder or hub name with a causal model."
        ) from error


def _tokenizer_class(folder: Path) -> Any:
    """AutoTokenizer, except for a folder whose tokenizer says that tokenizer.json is all of it.

    For some architectures (qwen2 among them) AutoTokenizer takes the architecture's own class instead, whose splitting
    of text differs: the same file then gives other tokens than it was trained with, silently.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").exists() and config.exists():
        said = json.loads(config.read_text()).get("tokenizer_class")
        if said in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            return PreTrainedTokenizerFast
    return AutoTokenizer
