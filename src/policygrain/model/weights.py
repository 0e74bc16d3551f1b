"""The full weights of a model with an adapter, or that TRL has sharded, as rollout engines and saved models need them.

Also a copy with rounded weights, for rollouts with a training–inference mismatch on purpose.

For a sharded model these functions are collective operations: all ranks must call them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .adapters import has_adapter
from .device import device
from .precision import compute_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LORA_INFIX = ".lora_"  # between a module's name and A or B in peft's parameter names


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


def rounded_copy(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A copy of ``model`` in the precision of its passes, whose weight matrices are rounded to ``bits`` bits.

    Round to nearest, symmetric, with a scale per row. Embeddings, norms and biases are not rounded, as in weight-only
    quantization of inference engines.
    """
    full = merged(model, dtype=compute_dtype(model))
    assert full is not None
    full = copy.deepcopy(full) if full is model else full
    unembedding: torch.nn.Module | None = full.get_output_embeddings()
    unrounded = {id(m.weight) for m in full.modules() if isinstance(m, torch.nn.Embedding) or m is unembedding}
    with torch.no_grad():
        for weight in full.parameters():
            if weight.ndim >= 2 and id(weight) not in unrounded:
                weight.copy_(_rounded(weight, bits))
    return full


def _rounded(weight: Tensor, bits: int) -> Tensor:
    """``weight`` with 2**bits − 1 values in each row, symmetric around 0."""
    largest = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True).float() / largest
    return (weight / scale.clamp(min=torch.finfo(torch.float32).tiny)).round() * scale
