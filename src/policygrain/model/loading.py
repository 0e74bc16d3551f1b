"""Loading a causal model and its tokenizer from a folder or a hub."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator
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
    start: str,
    revision: str | None = None,
    dtype: str = "float32",
    place: torch.device | None = None,
    fused: bool = True,
) -> tuple[PreTrainedModel, Any]:
    """A causal model on the device ``place`` (None: `device()`) and its tokenizer, set up for padding.

    ``fused``: with the kernels of `fuse_layers` where there is a GPU; they have one backward pass and no forward mode.

    UserError if they cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(start, revision)
    with _readable(start):
        model = AutoModelForCausalLM.from_pretrained(start, revision=revision, dtype=getattr(torch, dtype))
    model.to(place or device())  # type: ignore[arg-type]
    if fused and torch.cuda.is_available() and dtype != "float64":
        fuse_layers(model)
    gc.enable()
    return model, tokenizer


def fuse_layers(model: PreTrainedModel, by_liger: bool | None = None) -> None:
    """Norms, rotary embeddings and SwiGLU of ``model`` as fused kernels: by Liger if it is installed, else norms alone.

    Each operation of transformers' own layers reads and writes all activations. Other architectures stay as they are.
    """
    from torch.nn.functional import rms_norm

    config = model.config
    if config.model_type not in FUSED or config.hidden_act != "silu":
        return
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    if importlib.util.find_spec("liger_kernel") is None if by_liger is None else not by_liger:
        _with_forward(norms, lambda n, x: rms_norm(x, n.weight.shape, n.weight, n.variance_epsilon))
        return
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    # Modules of this model and not their classes, as Liger's own functions do: models on the CPU keep their layers.
    decoder: Any = model.base_model
    _with_forward(norms, lambda n, x: LigerRMSNormFunction.apply(x, n.weight, n.variance_epsilon, 0.0, "llama", False))
    _with_forward(
        [layer.mlp for layer in decoder.layers],
        lambda m, x: m.down_proj(LigerSiLUMulFunction.apply(m.gate_proj(x), m.up_proj(x))),
    )
    # Rotary embeddings are a function of the module that all its models share.
    module: Any = sys.modules[type(model).__module__]
    plain = module.apply_rotary_pos_emb
    if plain.__name__ == "rotary":
        return

    def rotary(q: torch.Tensor, *others: Any, **options: Any) -> Any:
        return (liger_rotary_pos_emb if q.is_cuda else plain)(q, *others, **options)

    module.apply_rotary_pos_emb = rotary


def _with_forward(modules: Iterable[Any], forward: Callable[[Any, torch.Tensor], Any]) -> None:
    """Give these modules another forward pass, by a class of their own: a bound function would be a reference cycle."""
    for module in modules:
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"forward": forward})


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
        return int(AutoConfig.from_pretrained(start).get_text_config().max_position_embeddings)


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
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").exists() and config.exists():
        name = json.loads(config.read_text()).get("tokenizer_class")
        if name in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            return PreTrainedTokenizerFast
    return AutoTokenizer
