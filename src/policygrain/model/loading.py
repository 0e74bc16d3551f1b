"""Models and tokenizers from a folder or a hub, LoRA adapters by peft, and the full weights of a model.

For a model that TRL has sharded, functions that return full weights are collective operations: all ranks call them.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, Qwen2Tokenizer

from ..errors import UserError
from ..study.schema import Lora
from .device import device
from .small import WEIGHTS, LanguageModel, SmallModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FUSED = ("llama", "qwen2", "qwen3")  # architectures whose norms are plain RMS norms


def load_model(
    start: str,
    revision: str | None = None,
    dtype: str = "float32",
    place: torch.device | None = None,
    fused: bool = True,
    small: bool = False,
) -> tuple[Any, Any]:
    """A causal model on the device ``place`` (None: `device()`) and its tokenizer. UserError if they cannot be loaded.

    ``fused``: with the kernels of `fuse_layers` where there is a GPU; they have one backward pass and no forward mode.
    ``small``: a `SmallModel` where it is one and there is no GPU, else the model of transformers.
    """
    folder = Path(start)
    precision: Any = getattr(torch, dtype, dtype)  # `auto`: that of its files
    with _readable(start):
        config = AutoConfig.from_pretrained(start, revision=revision)
        small = small and not torch.cuda.is_available() and (folder / WEIGHTS).exists() and SmallModel.fits(config)
        if small:
            model: Any = SmallModel.from_pretrained(folder, config, precision)
        else:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(start, revision=revision, dtype=precision)
    tokenizer = load_tokenizer(start, revision)
    model.to(place or device())
    if fused and torch.cuda.is_available() and dtype != "float64":
        fuse_layers(model)
    gc.enable()
    return model, tokenizer


def fuse_layers(model: PreTrainedModel) -> None:
    """Norms, rotary embeddings and SwiGLU of a ``model`` in FUSED as fused kernels of Liger, if it is installed."""
    supported = model.config.model_type in FUSED and model.config.hidden_act == "silu"
    if not supported or importlib.util.find_spec("liger_kernel") is None:
        return
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    # Modules of this model and not their classes, as Liger's own functions do: models on the CPU keep their layers.
    decoder: Any = model.base_model
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
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

    def rotary(q: Tensor, *others: Any, **options: Any) -> Any:
        return (liger_rotary_pos_emb if q.is_cuda else plain)(q, *others, **options)

    module.apply_rotary_pos_emb = rotary


def _with_forward(modules: Iterable[Any], forward: Callable[[Any, Tensor], Any]) -> None:
    """Give these modules another forward pass, by a class of their own: a bound function would be a reference cycle."""
    for module in modules:
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"forward": forward})


def load_tokenizer(start: str, revision: str | None = None) -> Any:
    """The tokenizer, with a padding token. UserError if it cannot be loaded or has no end-of-sequence token."""
    with _readable(start):
        config = AutoConfig.from_pretrained(start, revision=revision)
        if SmallModel.fits(config) and config.model_type == "qwen2":
            kind: Any = Qwen2Tokenizer  # AutoTokenizer opens it for every Qwen2, but imports what generates, too
        else:
            from transformers import AutoTokenizer as kind
        tokenizer = kind.from_pretrained(start, revision=revision)
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {start!r}: its tokenizer has no end-of-sequence token.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def context_length(start: str) -> int:
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


def add_adapter(model: PreTrainedModel, settings: Lora, seed: int) -> None:
    """Add a LoRA adapter, random by ``seed`` and without effect yet, to ``model`` and freeze all other weights."""
    if importlib.util.find_spec("peft") is None:
        raise UserError("model.lora: the package peft is missing; install it with `make setup`, or pip's extra `lora`.")
    from peft import LoraConfig

    alpha: Any = settings.alpha  # peft declares an int but only uses it in alpha / rank
    config = LoraConfig(r=settings.rank, lora_alpha=alpha, target_modules=settings.targets)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model.add_adapter(config)
        except ValueError as error:  # no module of that name
            raise UserError(f"model.lora.targets: {str(error).splitlines()[0]}") from error


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Set the weights of the adapter of ``model`` to those that `save_pretrained` wrote into ``folder``."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    prefix = "base_model.model."  # peft's, which the saved names have
    saved = load_file(folder / "adapter_model.safetensors")
    set_peft_model_state_dict(model, {name.removeprefix(prefix): weight for name, weight in saved.items()})


def has_adapter(model: LanguageModel) -> bool:
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def _full_tensor(tensor: Tensor) -> Tensor:
    """The whole value of a tensor that FSDP has sharded, a collective operation; else the tensor itself."""
    if not hasattr(tensor, "full_tensor"):  # no DTensor, whose module takes seconds to import
        return tensor
    on_device: Any = tensor.to(device())  # NCCL transfers only tensors on a GPU
    return on_device.full_tensor()


def full_weights(model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Each name and value of a weight, unsharded one at a time, with an adapter merged into the weights."""
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:  # between a module's name and A or B, as peft names them
            continue
        weight = _full_tensor(tensor.detach())
        module, base, leaf = name.rpartition(".base_layer.")
        if base and leaf == "weight":
            adapter: Any = model.get_submodule(module)
            weight = weight + _full_tensor(adapter.get_delta_weight("default").detach()).to(weight.dtype)
        yield f"{module}.{leaf}" if base else name, weight


def merged(
    model: LanguageModel, place: torch.device | None = None, keep: bool = True, dtype: torch.dtype | None = None
) -> LanguageModel | None:
    """A model with the full, merged weights: ``model`` itself if its own weights are these, else a copy.

    The copy is on the device ``place`` (None: where the weights are), in ``dtype`` (None: theirs). With ``keep=False``
    the result is None: this rank only takes part in gathering the weights for the others.
    """
    sharded = any(hasattr(p, "full_tensor") for p in model.parameters())
    if not (sharded or has_adapter(model)) and dtype in (None, model.dtype):
        return model
    weights = {name: tensor.to(device=place, dtype=dtype) for name, tensor in full_weights(model) if keep}
    if not keep:
        return None
    if isinstance(model, SmallModel):
        return SmallModel(model.config, weights, model.generation_config).eval()
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(model.config)
    plain.generation_config = model.generation_config
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    for name, buffer in model.named_buffers():  # rotary frequencies, which are in no state dict
        owner, _, leaf = name.rpartition(".")
        setattr(plain.get_submodule(owner), leaf, buffer.to(place))
    return plain.eval()
