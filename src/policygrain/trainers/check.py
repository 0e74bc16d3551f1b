"""The trainers of runs, and what each refuses before anything is spent (`policygrain check`, `policygrain train`).

A trainer is a function `train(study, arm, seed, *, start, data, run, stop)`, which trains a run from its newest
checkpoint, if there is one, to its final model and returns the final metrics. All ranks call it with equal arguments,
with the lock of the run's folder. If ``stop`` has a reason to stop after a step, it saves the run and raises `Stopped`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ..errors import UserError, did_you_mean
from ..integrations.options import NEEDS, VERL_LACKS, reads_entropies
from ..study.runs import run_matrix
from . import verl_settings

if TYPE_CHECKING:
    from ..study import Study
    from ..study.runs import Arm
    from ..study.schema import Training

TRL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("trl.yaml").read_text())


class Trainer(NamedTuple):
    """A trainer: the module of its `train`, its package, and the check of its own settings."""

    module: str
    several_processes: bool = False
    release: str = ""  # of its package, that runs were tested with
    installed: Callable[[], str] = str  # the release in its environment. PackageNotFoundError
    setup: str = ""
    check: Callable[[Study, Arm], None] = lambda study, arm: None


TRAINERS = {
    "policygrain": Trainer("..train.loop"),
    "trl": Trainer(
        ".trl",
        several_processes=True,
        release="1.16",
        installed=lambda: version("trl"),
        setup="run `make setup`, or pip's extra `trl`",
        check=lambda study, arm: _check_trl(arm.training),
    ),
    "verl": Trainer(
        ".verl",
        release="0.9",
        installed=lambda: verl_settings.verl_version(verl_settings.verl_python()),
        setup="run `make setup-verl`",
        check=verl_settings.check_own,
    ),
    "command": Trainer(".command", check=lambda study, arm: _command().check_command(study, arm)),
}
LACK_HEADS, VERL = ("trl", "verl"), ("verl",)


def features(study: Study, arm: Arm) -> dict[str, tuple[bool, tuple[str, ...]]]:
    """What not every trainer has → whether an arm asks for it, and the trainers that lack it (docs/trainers.md)."""
    settings, method = arm.training, arm.method
    sampler, divides = method.sampler, settings.prompts_per_step % settings.updates_per_batch == 0
    return {
        "parts by turns: a response of a study is one turn, and only your own trainer can have more": (
            getattr(method.ratio, "layout", None) == "turns",
            tuple(TRAINERS),
        ),
        # verl computes statistics of a step over the micro-batch, and masks from other inputs.
        **{NEEDS[need]: (need in method.needs, VERL) for need in (*VERL_LACKS, "step_log_probs")},
        NEEDS["mtp_heads"]: ("mtp_heads" in method.needs, LACK_HEADS),
        "a mask by entropies (TEPO)": (reads_entropies(method), VERL),
        "an overlong penalty (sampler.overlong_buffer)": (bool(sampler.overlong_buffer), VERL),
        "truncated responses left out of the loss (sampler.mask_truncated)": (sampler.mask_truncated, VERL),
        "rollout correction (sampler.correction_cap, rejection_high)": (sampler.corrects, VERL),
        "a ratio to the engine (anchor: rollout)": (method.anchor != "old", VERL),
        "an advantage other than grpo and dr_grpo": (method.advantage.name not in ("grpo", "dr_grpo"), VERL),
        "older rollouts (training.off_policy_steps)": (settings.off_policy_steps > 0, VERL),
        "the engine's log-probabilities as the old policy's (training.old_log_probs)": (
            settings.old_log_probs != "trainer",
            VERL,
        ),
        "adapters (model.lora)": (study.model.lora is not None, VERL),
        "updates that do not divide the prompts of a batch (training.updates_per_batch)": (not divides, VERL),
    }


def lacking(trainer: str, study: Study, arm: Arm) -> list[str]:
    """The features that an arm asks for and a trainer lacks."""
    return [text for text, (asked, without) in features(study, arm).items() if asked and trainer in without]


def check_trainers(study: Study) -> None:
    """UserError if an arm of the study needs a feature that its trainer lacks, or the trainer cannot run here."""
    arms = run_matrix(study).arms.values()
    for arm in arms:
        check_arm(study, arm)
    if any(arm.training.trainer == "command" for arm in arms):
        _command().check_distinct(study)


def trainer_notes(study: Study) -> list[str]:
    """Notes on effects of a study's trainers that are easily missed."""
    arms = run_matrix(study).arms.values()
    if not any(arm.training.trainer == "verl" and arm.method.sampler.dynamic for arm in arms):
        return []
    return [
        "training.trainer: with dynamic sampling verl replaces dropped groups by other groups than the loop, so its "
        "runs are not paired by seed with those of other methods, and differences have wider intervals. It logs "
        "nothing about dropped groups: `sampled_accuracy` is empty, and `total_tokens` estimated."
    ]


def check_arm(study: Study, arm: Arm) -> None:
    """UserError if the arm's trainer lacks a feature, is not installed, or cannot run in several processes as here."""
    settings = arm.training
    name, trainer = settings.trainer, TRAINERS[settings.trainer]
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
    if not trainer.several_processes and (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise UserError(
            f"training.trainer: {name} is started as one process, and this one is one of {ranks}. Set it to trl, or "
            "start one process."
        )
    try:
        installed = trainer.installed()
    except PackageNotFoundError as error:
        raise UserError(f"training.trainer: {name} is not installed; {trainer.setup}.") from error
    if trainer.release and not installed.startswith(f"{trainer.release}."):
        raise UserError(
            f"training.trainer: {name} {installed} is installed, and runs were tested with {trainer.release}; "
            f"{trainer.setup}."
        )
    trainer.check(study, arm)


def _command() -> ModuleType:
    """Its module, which imports torch."""
    return import_module(".command", __package__)


def _check_trl(settings: Training) -> None:
    """UserError for a key of `training.trl` that the study decides, that TRL does not have, or that cannot work.

    Only settings that TRL has from transformers' `TrainingArguments` are passed on, except those for which a study has
    keys. TRL's own settings are about objective and sampling, which the study decides.
    """
    if not settings.trl:
        return
    from transformers import TrainingArguments

    decided = {*TRL["always"], *TRL["of_study"], *TRL["of_run"], *type(settings).model_fields}
    passed_on = {field.name for field in fields(TrainingArguments)} - decided
    for key, value in settings.trl.items():
        given = value if isinstance(value, dict) else {}
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
