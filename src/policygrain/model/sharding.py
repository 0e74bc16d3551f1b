"""A model spread over all ranks of a run, by PyTorch's FSDP2: no rank holds all weights, gradients or moments.

Each layer is gathered when its turn comes and let go again. FSDP does that around `forward`; `read`, which never calls
the model as a whole, is made another such method.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import logprobs
from .loading import device
from .logprobs import TokenScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study.schema import Fsdp


def shard(model: PreTrainedModel, settings: Fsdp, offload: bool) -> None:
    """Spread ``model`` over the ranks, in place; all ranks have loaded the same one. ``offload``: in host memory.

    Forward and backward passes are in ``settings.compute``; weights and their gradients keep their own precision.
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
    if not dist.is_initialized():  # one process: it holds all, and computes like several
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    how: dict[str, Any] = {
        "mesh": init_device_mesh(place.type, (dist.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(getattr(torch, settings.compute), reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=place.type == "cuda") if offload else OffloadPolicy(),
        # Of the root too: a pass without gradient must not leave weights behind that the next update makes stale.
        "reshard_after_forward": True,
    }
    for module in list(model.modules()):
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, **how)
    fully_shard(model, **how)
    model.sharded_precision = getattr(torch, settings.compute)
    model.sharded_score_tokens = MethodType(logprobs.score_tokens, model)  # type: ignore[assignment]
    register_fsdp_forward_method(model, "sharded_score_tokens")


def score_tokens(model: PreTrainedModel, *arguments: Any, **named: Any) -> TokenScores:
    """`logprobs.score_tokens`, with all of the model's weights there where it is sharded."""
    method: Any = getattr(model, "sharded_score_tokens", None) or MethodType(logprobs.score_tokens, model)
    scores: TokenScores = method(*arguments, **named)
    return scores


def is_sharded(model: PreTrainedModel) -> bool:
    """Whether this rank holds a part of the weights only."""
    return hasattr(model, "sharded_score_tokens")


def precision(model: PreTrainedModel) -> torch.dtype:
    """In which ``model`` computes."""
    found: torch.dtype = getattr(model, "sharded_precision", None) or model.dtype
    return found


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded. All ranks call this together."""
    whole = getattr(tensor, "full_tensor", None)
    # NCCL carries only what is on a GPU.
    return tensor if whole is None else tensor.to(device()).full_tensor()  # type: ignore[attr-defined]
