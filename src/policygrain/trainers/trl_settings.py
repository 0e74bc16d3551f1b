"""The settings of TRL's trainer: those that follow from a study, and those of `training.trl`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..errors import UserError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from trl import GRPOConfig

    from ..study.schema import Training


def check_keys(settings: Training) -> None:
    """UserError for a key of `training.trl` that the study decides, that TRL does not have, or that cannot work.

    Only settings that TRL has from transformers' `TrainingArguments` are passed on, except those for which a study has
    keys. TRL's own settings are about objective and sampling, which the study decides.
    """
    if not settings.trl:
        return
    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments)}
    decided = {*of_study(settings, 1), *type(settings).model_fields}
    for key, value in settings.trl.items():
        if "vllm" in key:
            raise UserError(
                f"training.trl.{key}: the study's engine samples (training.engine: vllm, in each process). TRL's "
                "own vLLM has no sampling seed per response, so runs would not be paired; for vLLM servers use verl."
            )
        if key in decided or key not in known:
            raise UserError(
                f"training.trl.{key}: is not passed on to TRL: the study decides it, or TRL has no such setting."
                f"{did_you_mean(key, known - decided)}"
            )
        if key == "fsdp_config" and isinstance(value, dict) and str(value.get("version", 2)) != "2":
            raise UserError("training.trl.fsdp_config.version: the engine cannot read weights of FSDP1; leave it out.")
        if key == "deepspeed" and isinstance(value, dict) and value.get("zero_optimization", {}).get("stage") == 3:
            raise UserError(
                "training.trl.deepspeed: ZeRO stage 3 shards the weights in a form that the engine cannot read. Use "
                "stage 1 or 2, or `fsdp: true`."
            )


def is_sharded(settings: Training) -> bool:
    """Whether each process holds only a part of the weights (FSDP)."""
    return bool(settings.trl.get("fsdp"))


def micro_batches_per_update(settings: Training, ranks: int) -> int:
    """The number of micro-batches that each process divides its share of an optimizer step into.

    It is the same for all steps: enough for responses of `max_tokens` to fit into `micro_batch_tokens`.
    """
    responses = settings.prompts_per_step * settings.group
    share = -(-responses // (settings.updates_per_batch * ranks))
    rows = max(1, settings.micro_batch_tokens // settings.max_tokens)
    return -(-share // rows)


def of_study(settings: Training, ranks: int) -> dict[str, Any]:
    """The settings of TRL that follow from a study."""
    micro_batches = micro_batches_per_update(settings, ranks)
    return {
        # The trainer takes its batches from the study; these numbers only count micro-batches and optimizer steps.
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": micro_batches * settings.updates_of_batch,
        "max_steps": settings.steps * settings.updates_of_batch,
        "max_completion_length": settings.max_tokens,
        "temperature": settings.temperature,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.betas[0],
        "adam_beta2": settings.betas[1],
        "adam_epsilon": 1e-8,
        "optim": "adamw_torch",
        "lr_scheduler_type": "constant",
        "warmup_steps": settings.warmup_updates,
        "max_grad_norm": settings.max_grad_norm,
        "gradient_checkpointing": settings.activation_checkpointing,
        "beta": 0.0,
        "logging_strategy": "no",
        "save_strategy": "no",
        "ignore_data_skip": True,
        "shuffle_dataset": False,
        "report_to": [],
        "disable_tqdm": True,
    }


def grpo_config(
    settings: Training, out: Path, ranks: int, *, half: str | None, loads_reference: bool, gpu: bool
) -> GRPOConfig:
    """TRL's configuration of a run. ``half``: the precision of autocast, if it is not that of the weights.

    UserError if TRL refuses the settings of `training.trl`.
    """
    from trl import GRPOConfig

    of_machine = {"output_dir": str(out), "use_cpu": not gpu, "bf16": half == "bfloat16", "fp16": half == "float16"}
    # Any number but 0 makes TRL load the initial model, and shard it; the penalty itself is the objective's.
    reference = {"beta": 1.0} if loads_reference else {}
    try:
        return GRPOConfig(**of_study(settings, ranks) | reference | of_machine | settings.trl)
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"training.trainer: TRL refuses the settings of this run: {str(error).splitlines()[0]}"
        ) from error
