"""The trainers of runs, and what each refuses before anything is spent (`policygrain check`, `policygrain train`).

A trainer is a function `train(study, arm, seed, *, start, data, run, stop)`, which trains a run from its newest
checkpoint, if there is one, to its final model and returns the final metrics. All ranks call it with equal arguments,
with the lock of the run's folder. If ``stop`` has a reason to stop after a step, it saves the run and raises `Stopped`.
"""

from __future__ import annotations

import os
from dataclasses import fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import UserError, did_you_mean
from ..files import read_json
from ..integrations.options import NEEDS, VERL_LACKS, reads_entropies
from ..study.runs import run_matrix

if TYPE_CHECKING:
    from ..study import Study
    from ..study.runs import Arm
    from ..study.schema import Training

TRL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("trl.yaml").read_text())
# The modules with the `train` of each trainer. Most import torch, so they are imported when they are used.
TRAINERS = {"policygrain": "..train.loop", "trl": ".trl", "verl": ".verl", "command": ".command"}
DYNAMIC_BY_VERL = (
    "training.trainer: with dynamic sampling verl replaces dropped groups by other groups than the loop, so its "
    "runs are not paired by seed with those of other methods, and differences have wider intervals. It logs "
    "nothing about dropped groups: `sampled_accuracy` is empty, and `total_tokens` estimated."
)
# Packages of trainers: the release that runs were tested with, and how it is installed.
PACKAGES = {"trl": ("1.16", "run `make setup`, or pip's extra `trl`"), "verl": ("0.9", "run `make setup-verl`")}


def lacking(trainer: str, study: Study, arm: Arm) -> list[str]:
    """The features that an arm asks for and a trainer lacks (docs/trainers.md)."""
    settings, method, sampler = arm.training, arm.method, arm.method.sampler
    divides, by_engine = settings.prompts_per_step % settings.updates_per_batch == 0, settings.old_log_probs == "engine"
    turns = "parts by turns: a response of a study is one turn, and only your own trainer can have more"
    asked = {turns: getattr(method.ratio, "layout", None) == "turns"}
    if trainer == "trl":
        asked[NEEDS["mtp_heads"]] = "mtp_heads" in method.needs
    if trainer == "verl":
        # verl computes statistics of a step over the micro-batch, and masks from other inputs.
        asked |= {NEEDS[need]: need in method.needs for need in (*VERL_LACKS, "step_log_probs")} | {
            "a mask by entropies (TEPO)": reads_entropies(method),
            "an overlong penalty (sampler.overlong_buffer)": sampler.overlong_buffer > 0,
            "truncated responses left out of the loss (sampler.mask_truncated)": sampler.mask_truncated,
            "rollout correction (sampler.correction_cap, rejection_high)": sampler.corrects,
            "a ratio to the engine (anchor: rollout)": method.anchor != "old",
            "an advantage other than grpo and dr_grpo": method.advantage.name not in ("grpo", "dr_grpo"),
            "older rollouts (training.off_policy_steps)": settings.off_policy_steps > 0,
            "the engine's log-probabilities as the old policy's (training.old_log_probs)": by_engine,
            "adapters (model.lora)": study.model.lora is not None,
            "updates that do not divide the prompts of a batch (training.updates_per_batch)": not divides,
        }
    return [feature for feature, is_asked in asked.items() if is_asked]


def check_trainers(study: Study) -> None:
    """UserError if an arm of the study needs a feature that its trainer lacks, or the trainer cannot run here."""
    arms = run_matrix(study).arms.values()
    for arm in arms:
        check_arm(study, arm)
    if any(arm.training.trainer == "command" for arm in arms):
        import_module(TRAINERS["command"], __package__).check_distinct(study)


def check_arm(study: Study, arm: Arm) -> None:
    """UserError if the arm's trainer lacks a feature, is not installed, or cannot run in several processes as here."""
    settings = arm.training
    name = settings.trainer
    used = {name, *(other.training.trainer for other in run_matrix(study).arms.values())}
    for other in TRAINERS:
        if getattr(settings, other, None) and other not in used:
            raise UserError(f"training.{other}: only trainer: {other} reads it, and training.trainer is {name}.")
    if lacks := lacking(name, study, arm):
        others = [other for other in TRAINERS if other != "command" and not lacking(other, study, arm)]
        instead = f"Set it to {' or '.join(others)}, or leave" if others else "Leave"
        raise UserError(
            f"training.trainer: {name} lacks features that {arm.name} needs: {'; '.join(lacks)}. {instead} them out "
            "(docs/trainers.md)."
        )
    if name != "trl" and (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise UserError(
            f"training.trainer: {name} is started as one process, and this one is one of {ranks}. Set it to trl, or "
            "start one process."
        )
    if name in PACKAGES:
        release, setup = PACKAGES[name]
        verl = import_module(TRAINERS["verl"], __package__) if name == "verl" else None
        try:
            installed = version(name) if verl is None else verl.verl_version(verl.verl_python())
        except PackageNotFoundError as error:
            raise UserError(f"training.trainer: {name} is not installed; {setup}.") from error
        if not installed.startswith(f"{release}."):
            raise UserError(
                f"training.trainer: {name} {installed} is installed, and runs were tested with {release}; {setup}."
            )
    if name == "trl":
        _check_trl(settings)
    elif name != "policygrain":
        import_module(TRAINERS[name], __package__).check(study, arm)


def _check_trl(settings: Training) -> None:
    """UserError for a key of `training.trl` that the study decides, that TRL does not have, or that cannot work.

    TRL's own settings, which transformers' `TrainingArguments` lack, are about objective and sampling.
    """
    if not settings.trl:
        return
    from transformers import TrainingArguments

    decided = {*TRL["always"], *TRL["of_study"], *TRL["of_run"], *TRL["refused"], *type(settings).model_fields}
    passed_on = {field.name for field in fields(TrainingArguments)} - decided
    for key, value in settings.trl.items():
        of_file = key in ("deepspeed", "fsdp_config") and isinstance(value, str)
        given = read_json(Path(value), f"training.trl.{key} names it.") if of_file else value
        given = given if isinstance(given, dict) else {}
        if "vllm" in key:
            raise UserError(
                f"training.trl.{key}: the study's engine samples (training.engine: vllm, in each process). TRL's "
                "own vLLM has no sampling seed per response, so runs would not be paired; for vLLM servers use verl."
            )
        if key not in passed_on:
            raise UserError(
                f"training.trl.{key}: is not passed on to TRL: the study decides it, or TRL has no such setting."
                f"{did_you_mean(key, passed_on)}"
            )
        if key == "fsdp_config" and str(given.get("version", 2)) != "2":
            raise UserError("training.trl.fsdp_config.version: the engine cannot read weights of FSDP1; leave it out.")
        if key == "deepspeed" and given.get("zero_optimization", {}).get("stage") == 3:
            raise UserError(
                "training.trl.deepspeed: ZeRO stage 3 shards the weights in a form that the engine cannot read. Use "
                "stage 1 or 2, or `fsdp: true`."
            )
