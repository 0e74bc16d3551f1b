"""The policy and the start policy, as a study wants them held and computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..model.adapters import adapt
from ..model.loading import load_model, recompute_layers
from ..model.sharding import shard
from ..provenance import seed_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study.schema import Lora, Training


def open_models(
    start: str, revision: str | None, dtype: str, lora: Lora | None, settings: Training, seed: int
) -> tuple[PreTrainedModel, PreTrainedModel | None, Any]:
    """(policy, start policy, tokenizer). The start policy is kept in host memory; None: the policy has an adapter.

    Every rank reads the whole model into host memory, also where it is to keep a part of it.
    """
    host = torch.device("cpu")
    model, tokenizer = load_model(start, revision, dtype, None if settings.fsdp is None else host)
    reference = None
    if lora is None:
        reference, _ = load_model(start, revision, dtype, host)
        reference.requires_grad_(False)
    else:
        adapt(model, lora, seed_of("adapter", seed))
    if settings.activation_checkpointing:
        recompute_layers(model)
    if settings.fsdp is not None:
        shard(model, settings.fsdp, settings.fsdp.cpu_offload)
        if reference is not None:
            shard(reference, settings.fsdp, offload=True)
    return model, reference, tokenizer
