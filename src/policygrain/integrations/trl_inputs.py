"""TRL's inputs of a micro-batch by the names of a TokenBatch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MULTIMODAL = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


def mask_of(inputs: dict[str, Any]) -> Tensor:
    """1 on the tokens of responses, without tool output. [batch, tokens]."""
    mask: Tensor = inputs["completion_mask"]
    return mask * inputs.get("tool_mask", 1)


def score(trainer: Any, model: Any, inputs: dict[str, Any], **options: Any) -> tuple[Any, ...]:
    """(log-probabilities, entropies, further outputs of TRL) of the responses, [batch, tokens], with gradient."""
    scored: tuple[Any, ...] = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].shape[1],
        compute_entropy=True,
        **options,
        **{key: inputs[key] for key in MULTIMODAL if key in inputs},
    )
    return scored


def fields_of(inputs: dict[str, Any], log_probs: Tensor, entropy: Tensor) -> dict[str, Any]:
    """The fields of a TokenBatch that TRL has; `old_entropies` must have been added to its inputs."""
    old, weights = inputs.get("old_per_token_logps"), inputs.get("importance_sampling_ratio")
    return {
        "log_probs": log_probs,
        # Without them the rollouts are of the current policy: TRL leaves the pass out where nothing was updated since.
        "old_log_probs": log_probs.detach() if old is None else old,
        "advantages": inputs["advantages"],
        "mask": mask_of(inputs),
        "entropy": entropy,
        "old_entropy": entropy.detach() if old is None else inputs.get("old_entropies"),
        "ref_log_probs": inputs.get("ref_per_token_logps"),
        "rollout_log_probs": inputs.get("sampling_per_token_logps"),
        "rollout_weights": None if weights is None else weights.expand_as(log_probs),  # TRL's correction for vLLM
    }
