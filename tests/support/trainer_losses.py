"""The losses of trainers by themselves: loss and gradient of one optimizer step, in micro-batches, on ranks."""

import importlib
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor

TRL: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())["trl"]


def trl_loss(fields: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor, dict[str, list[float]]]:
    """TRL's `_compute_loss` without its trainer: loss, gradient by the log-probabilities, and TRL's metrics.

    ``options``: micro, max_length, and beside TRL's defaults loss_type, level, clip, beta, delta.
    """
    log_probs = fields["log_probs"].clone().requires_grad_()
    loss, metrics = trl_objective(fields | {"log_probs": log_probs}, **options)
    return loss.detach(), torch.autograd.grad(loss, log_probs)[0], metrics


def trl_objective(
    fields: dict[str, Any], *, micro: int = 1, max_length: int = 12, **options: Any
) -> tuple[Tensor, dict[str, list[float]]]:
    """The same loss of ``micro`` micro-batches with its gradient still to be computed, and TRL's metrics."""
    from trl import GRPOTrainer

    chosen = TRL["options"] | options
    log_probs = fields["log_probs"]
    mask = fields["mask"].to(log_probs.dtype)
    rows = len(mask) // micro
    metrics: dict[str, list[float]] = defaultdict(list)
    loss = torch.zeros((), dtype=log_probs.dtype)
    for start in range(0, len(mask), rows):
        part = slice(start, start + rows)
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, cut=part, **__: (
                log_probs[cut],
                fields["entropy"][cut],
                None,
            ),
            accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
            args=SimpleNamespace(delta=chosen["delta"], steps_per_generation=micro, **TRL["args"]),
            get_gamma_weights=GRPOTrainer.get_gamma_weights,
            model=SimpleNamespace(training=True),
            loss_type=chosen["loss_type"],
            importance_sampling_level=chosen["level"],
            epsilon_low=chosen["clip"][0],
            epsilon_high=chosen["clip"][1],
            beta=chosen["beta"],
            max_completion_length=max_length,
            current_gradient_accumulation_steps=micro,
            _metrics={"train": metrics},
            **TRL["trainer"],
        )
        nothing = torch.zeros(rows, 1, dtype=torch.long)
        inputs = {
            "prompt_ids": nothing,
            "prompt_mask": nothing,
            "completion_ids": mask[part].long(),
            "completion_mask": mask[part],
            "advantages": fields["advantages"][part],
            "old_per_token_logps": fields["old_log_probs"][part],
            "ref_per_token_logps": fields["ref_log_probs"][part],
            "num_items_in_batch": mask.sum(),
            "sampling_per_token_logps": fields.get("rollout_log_probs", fields["old_log_probs"])[part],
        }
        loss = loss + GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, metrics


def verl_config(mode: str, **changes: Any) -> Any:
    """verl's actor configuration with its defaults and ``changes``; `policy_loss` takes those of a loss."""
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    of_the_loss = changes.pop("policy_loss", {})
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=mode, **of_the_loss),
        **changes,
    )


def verl_step(
    mode: str, config: Any, fields: dict[str, Any], micro: int = 1, ranks: int = 1
) -> tuple[float, torch.Tensor]:
    """A mini-batch of verl: each rank's micro-batches are added up, and ranks are averaged, as by FSDP."""
    log_probs = fields["log_probs"].clone().requires_grad_()
    loss = verl_objective(mode, config, fields | {"log_probs": log_probs}, micro, ranks)
    return float(loss.detach()), torch.autograd.grad(loss, log_probs)[0]


def verl_objective(mode: str, config: Any, fields: dict[str, Any], micro: int = 1, ranks: int = 1) -> Tensor:
    """The same loss with its gradient by ``log_probs`` still to be computed."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    log_probs = fields["log_probs"]
    rows = len(log_probs) // (micro * ranks)
    config.global_batch_info.update(
        dp_size=ranks,
        batch_num_tokens=int(fields["mask"].sum()),
        global_batch_size=len(log_probs),
        loss_scale_factor=fields["mask"].shape[1],
    )
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(0, len(log_probs), rows):
        part = slice(i, i + rows)
        found, _ = get_policy_loss_fn(mode)(
            old_log_prob=fields["old_log_probs"][part],
            log_prob=log_probs[part],
            advantages=fields["advantages"][part].unsqueeze(1).expand_as(log_probs[part]),
            response_mask=fields["mask"][part].bool(),
            loss_agg_mode=config.loss_agg_mode,
            config=config,
            rollout_is_weights=None,
        )
        loss = loss + found / ranks
    return loss


def areal_actor() -> Any:
    """AReaL's module of the PPO actor, without its trainers, which import trackers that are not installed."""
    import areal

    for name in ("areal.trainer", "areal.trainer.ppo"):
        bare = sys.modules.setdefault(name, ModuleType(name))
        bare.__path__ = [str(Path(areal.__file__).parent.joinpath(*name.split(".")[1:]))]
    return importlib.import_module("areal.trainer.ppo.actor")


def trinity_objective(name: str, fields: dict[str, Any]) -> Tensor:
    """Trinity-RFT's policy loss with its default arguments."""
    from trinity.algorithm import POLICY_LOSS_FN

    kind = POLICY_LOSS_FN.get(name)
    return kind(**kind.default_args())(
        logprob=fields["log_probs"],
        old_logprob=fields["old_log_probs"],
        action_mask=fields["mask"].to(fields["log_probs"].dtype),
        advantages=fields["advantages"].unsqueeze(1).expand_as(fields["log_probs"]),
    )[0]
