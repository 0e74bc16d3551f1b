"""Sharding by PyTorch's FSDP2: weights, gradients and optimizer state are divided among the ranks of a run.

Each layer is gathered for its forward and backward pass and resharded afterwards. FSDP does so around `forward`;
`score_tokens` does not call the model's own `forward`, so it is registered as another forward method.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from . import logprobs
from .device import device
from .logprobs import TokenScores
from .precision import compute_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def shard(model: PreTrainedModel, offload: bool) -> None:
    """Shard ``model`` over all ranks, in place; every rank has loaded the same weights.

    ``offload`` keeps the shards in host memory. Forward and backward passes run in `compute_dtype`; weights and their
    gradients keep their own precision.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    place = device()
    if not dist.is_initialized():  # a single process: a world of size 1
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    how: dict[str, Any] = {
        "mesh": init_device_mesh(place.type, (dist.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(compute_dtype(model), reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=place.type == "cuda") if offload else OffloadPolicy(),
        # Also for the root module: otherwise a pass without gradient would leave gathered weights that the next
        # optimizer step does not update.
        "reshard_after_forward": True,
    }
    for module in list(model.modules()):
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, **how)
    fully_shard(model, **how)
    model.sharded_score_tokens = MethodType(logprobs.score_tokens, model)  # type: ignore[assignment]
    register_fsdp_forward_method(model, "sharded_score_tokens")


def score_tokens(model: PreTrainedModel, *arguments: Any, **named: Any) -> TokenScores:
    """`logprobs.score_tokens` that gathers the weights of a sharded model."""
    method: Any = getattr(model, "sharded_score_tokens", None) or MethodType(logprobs.score_tokens, model)
    scores: TokenScores = method(*arguments, **named)
    return scores


def is_sharded(model: PreTrainedModel) -> bool:
    """Whether ``model`` is sharded, so that this rank holds only a part of its weights."""
    return hasattr(model, "sharded_score_tokens")


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: a view of its shard if it is sharded, else the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded value of ``tensor``. A collective operation for a sharded tensor: all ranks must call it."""
    # NCCL transfers only tensors on a GPU.
    on_device = tensor.to(device()) if isinstance(tensor, DTensor) else tensor
    return on_device.full_tensor() if isinstance(on_device, DTensor) else on_device
