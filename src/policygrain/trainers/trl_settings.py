"""TRL's settings for an arm of a study: those that the study decides, and those of `training.trl`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import UserError, did_you_mean

if TYPE_CHECKING:
    from trl import GRPOConfig

    from ..study.schema import Training

TRL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("trl.yaml").read_text())


def check_own(settings: Training) -> None:
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
        given = value if isinstance(value, dict) else {}
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
        if key == "fsdp_config" and str(given.get("version", 2)) != "2":
            raise UserError("training.trl.fsdp_config.version: the engine cannot read weights of FSDP1; leave it out.")
        if key == "deepspeed" and given.get("zero_optimization", {}).get("stage") == 3:
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
        **TRL["always"],
        **{theirs: getattr(settings, ours) for theirs, ours in TRL["of_study"].items()},
        "adam_beta1": settings.betas[0],
        "adam_beta2": settings.betas[1],
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": micro_batches * settings.updates_of_batch,
        "max_steps": settings.steps * settings.updates_of_batch,
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
