"""The settings of TRL's trainer: those that follow from a study, and those of `training.trl`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, did_you_mean

if TYPE_CHECKING:
    from trl import GRPOConfig

    from ..study.schema import Training

# Settings of memory and distribution of TRL, Accelerate and DeepSpeed. Any other setting of TRL either has a key in a
# study or would change what is trained without the study saying so.
PASSED = (
    "accelerator_config",
    "cast_lm_head_to_fp32",
    "ddp_backend",
    "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers",
    "ddp_find_unused_parameters",
    "ddp_static_graph",
    "ddp_timeout",
    "deepspeed",
    "fsdp",
    "fsdp_config",
    "full_determinism",
    "gradient_checkpointing_kwargs",
    "parallelism_config",
    "tf32",
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
    "torch_empty_cache_steps",
)


def check_keys(settings: Training) -> None:
    """UserError for a key of `training.trl` that is not passed on to TRL."""
    for key, value in settings.trl.items():
        if "vllm" in key:
            raise UserError(
                f"training.trl.{key}: the study's engine samples (training.engine: vllm, in each process). TRL's "
                "own vLLM has no sampling seed per response, so runs would not be paired; for servers take verl."
            )
        if key not in PASSED:
            raise UserError(
                f"training.trl.{key}: is not passed on to TRL: the study decides it, or TRL has no such setting."
                f"{did_you_mean(key, PASSED)} These are passed on: {', '.join(PASSED)}."
            )
        if key == "fsdp_config" and isinstance(value, dict) and str(value.get("version", 2)) != "2":
            raise UserError("training.trl.fsdp_config.version: weights in FSDP1 cannot be sampled from; leave it out.")
        if key == "deepspeed" and _zero_stage(value) == 3:
            raise UserError(
                "training.trl.deepspeed: ZeRO stage 3 divides the weights, which the engine that samples cannot read. "
                "Take stage 1 or 2, or `fsdp: true`."
            )


def _zero_stage(deepspeed: Any) -> int | None:
    """The stage in a DeepSpeed configuration: a mapping, or a JSON file."""
    try:
        content = json.loads(Path(deepspeed).read_text()) if isinstance(deepspeed, str) else deepspeed
        stage = content["zero_optimization"]["stage"]
    except OSError as error:
        raise UserError(f"training.trl.deepspeed: {deepspeed}: cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError):
        return None
    return stage if isinstance(stage, int) else None


def is_sharded(settings: Training) -> bool:
    """Whether each process holds a part of the weights only."""
    return bool(settings.trl.get("fsdp"))


def micro_batches_per_update(settings: Training, ranks: int) -> int:
    """The number of micro-batches that each process divides its share of an optimizer step into.

    It is the same for all steps: enough for responses of `max_tokens` to fit into `micro_batch_tokens`.
    """
    responses = settings.prompts_per_step * settings.group
    share = -(-responses // (settings.updates_per_batch * ranks))
    rows = max(1, settings.micro_batch_tokens // settings.max_tokens)
    return -(-share // rows)


def grpo_config(
    settings: Training, out: Path, ranks: int, *, half: str | None, loads_reference: bool, gpu: bool
) -> GRPOConfig:
    """TRL's configuration of a run. ``half``: the precision of autocast, if it is not that of the weights.

    UserError if TRL refuses the settings of `training.trl`.
    """
    from trl import GRPOConfig

    micro_batches = micro_batches_per_update(settings, ranks)
    values: dict[str, Any] = {
        "output_dir": str(out),
        "use_cpu": not gpu,
        "bf16": half == "bfloat16",
        "fp16": half == "float16",
        # The trainer takes its batches from the study; these numbers only count micro-batches and optimizer steps.
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": micro_batches * settings.updates_of_batch,
        "max_steps": settings.steps * settings.updates_of_batch,
        "max_completion_length": settings.max_tokens,
        "temperature": settings.temperature,
        "learning_rate": settings.learning_rate,
        "max_grad_norm": settings.max_grad_norm,
        # Any number but 0 makes TRL load the initial model, and shard it; the penalty itself is the objective's.
        "beta": 1.0 if loads_reference else 0.0,
        "gradient_checkpointing": settings.activation_checkpointing,
        "logging_strategy": "no",
        "save_strategy": "no",
        "ignore_data_skip": True,
        "shuffle_dataset": False,
        "report_to": [],
        "disable_tqdm": True,
        **settings.trl,
    }
    known = {field.name for field in fields(GRPOConfig)}
    if unknown := [key for key in settings.trl if key not in known]:
        raise UserError(f"training.trl.{unknown[0]}: the installed TRL has no such setting.")
    try:
        return GRPOConfig(**values)
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"training.trainer: TRL refuses the settings of this run: {str(error).splitlines()[0]}"
        ) from error
