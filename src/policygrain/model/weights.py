"""LoRA adapters, and the full weights of a model with one, or that TRL has sharded, for engines and saved models.

LoRA (arXiv 2106.09685) is by peft: W + (alpha / rank) B A, where only A and B are trained. With the adapter disabled
the model is the initial policy, so a KL penalty to the initial policy needs no second model.

For a sharded model, functions that return full weights are collective operations: all ranks must call them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..errors import UserError
from .device import device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study.schema import Lora

LORA_INFIX = ".lora_"  # between a module's name and A or B in peft's parameter names


def add_adapter(model: PreTrainedModel, settings: Lora, seed: int) -> None:
    """Add a LoRA adapter to ``model`` in place and freeze all other weights.

    A is initialised at random from ``seed`` and B with zeros, so the model's output does not change yet.
    UserError if peft is not installed or no module has one of the ``settings.targets`` as its name.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError("model.lora: the package peft is missing; install it with `make setup`, or pip's extra `lora`.")
    from peft import LoraConfig

    # peft declares alpha as int but only uses it in alpha / rank.
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=settings.targets)  # type: ignore[arg-type]
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


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether ``model`` has a LoRA adapter."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def _full_tensor(tensor: Tensor) -> Tensor:
    """The whole value of a tensor that FSDP has sharded, a collective operation; else the tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    on_device: Any = tensor.to(device())  # NCCL transfers only tensors on a GPU
    whole: Tensor = on_device.full_tensor()
    return whole


def _merged_weight(model: PreTrainedModel, name: str, state: dict[str, Tensor]) -> tuple[str, Tensor]:
    """Weight ``name`` of a model with an adapter: its name without the adapter, and its value with B A added."""
    weight = _full_tensor(state[name].detach())
    module, base, leaf = name.rpartition(".base_layer.")
    if not base:
        return name, weight
    if leaf == "weight":
        a, b = (_full_tensor(state[f"{module}{LORA_INFIX}{x}.default.weight"].detach()) for x in "AB")
        adapter: Any = model.get_submodule(module)
        weight = weight + (adapter.scaling["default"] * (b @ a)).to(weight.dtype)
    return f"{module}.{leaf}", weight


def full_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each weight, unsharded one at a time, with an adapter merged into the weights.

    Tied weights appear under each of their names.
    """
    state = model.state_dict()
    for name, tensor in state.items():
        if not has_adapter(model):
            yield name, _full_tensor(tensor.detach())
        elif f"{LORA_INFIX}A" not in name and f"{LORA_INFIX}B" not in name:
            yield _merged_weight(model, name, state)


def merged(
    model: PreTrainedModel, place: torch.device | None = None, keep: bool = True, dtype: torch.dtype | None = None
) -> PreTrainedModel | None:
    """A model with the full, merged weights: ``model`` itself if its own weights are these, else a copy.

    The copy is on the device ``place`` (None: where the weights are), in ``dtype`` (None: theirs), and does not follow
    later updates of ``model``.
    With ``keep=False`` the result is None: this rank only takes part in gathering the weights for the others.
    """
    sharded = any(isinstance(p, DTensor) for p in model.parameters())
    if not (sharded or has_adapter(model)) and dtype in (None, model.dtype):
        return model
    weights = {name: tensor.to(device=place, dtype=dtype) for name, tensor in full_weights(model) if keep}
    if not keep:
        return None
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(model.config)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    for name, buffer in model.named_buffers():  # rotary frequencies, which are in no state dict
        owner, _, leaf = name.rpartition(".")
        setattr(plain.get_submodule(owner), leaf, buffer.to(place))
    return plain.eval()
