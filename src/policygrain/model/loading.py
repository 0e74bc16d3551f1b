"""Loading a causal model and its tokenizer from a folder or a hub."""

from __future__ import annotations

import gc
import json
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

    try:
        tokenizer = _tokenizer_class(Path(start)).from_pretrained(start, revision=revision)
        model = AutoModelForCausalLM.from_pretrained(start, revision=revision, dtype=getattr(torch, dtype))
    except Exception as error:  # transformers, safetensors and the hub raise what they like for a broken folder
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"model {start!r} cannot be loaded: {reason} It must be a folder or hub name with a causal model."
        ) from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {start!r}: its tokenizer has no end-of-sequence token.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(place or device())  # type: ignore[arg-type]
    gc.enable()
    return model, tokenizer


def recompute_layers(model: PreTrainedModel) -> None:
    """Layers keep only their input for the backward pass, and compute the rest again: memory for a third more time."""
    from torch.utils.checkpoint import checkpoint

    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            module.forward = partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False)


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
