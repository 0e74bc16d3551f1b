"""Checks of a study file that involve several keys; imports no torch."""

from __future__ import annotations

import re

from ..errors import UserError
from ..objective import method
from .runs import START, Arm, arms_of, run_matrix
from .schema import Experiment, Study, Training
from .sections import distinct

LONGEST_ARM = 150  # characters; folder names, with what is added to an arm's name, have at most 255 bytes


def check_keys(study: Study) -> None:
    """UserError for the first key that contradicts another one; the message says how to correct it."""
    _check_alone(study)
    for name in study.methods:
        method(name, study.methods)
    for name, experiment in study.experiments.items():
        _check_experiment(name, experiment, study)
    try:
        distinct([name.lower() for name in run_matrix(study).arms])
    except ValueError as error:
        raise UserError(f"methods: {error}, if case is ignored as on some file systems.") from error


def check_credentials(study: Study) -> None:
    """UserError if the study file contains a password: it is copied with its results."""
    if re.search(r"://[^/\s]*@|[?&](?:password|token)=", study.tracking.uri or ""):
        raise UserError(  # without the address, which has the password in it
            "tracking.uri: contains a user name, password or token, and a study file is copied with its results. Set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )


def _check_alone(study: Study) -> None:
    """UserError for settings of model, prompt or evaluation that are incompatible."""
    tiny = study.model.tiny
    if tiny.hidden % tiny.heads:
        raise UserError(f"model.tiny.heads: hidden size {tiny.hidden} is not divisible by {tiny.heads} heads.")
    if tiny.hidden // tiny.heads % 32:
        raise UserError(
            f"model.tiny.heads: the head size {tiny.hidden} / {tiny.heads} must be a multiple of 32 (vLLM on CPUs)."
        )
    if study.prompt.system and not study.prompt.chat:
        raise UserError("prompt.system: requires prompt.chat: true. Set that, or leave prompt.system out.")
    if study.evaluation.after_training and study.training.engine == "vllm":
        raise UserError(
            "evaluation.after_training: requires training.engine: transformers; a vLLM engine evaluates many models."
        )


def _check_experiment(name: str, experiment: Experiment, study: Study) -> None:
    for arm in arms_of(experiment, study):
        try:
            settings, heads = arm.training(study), arm.method(study).n_mtp_heads
            _check_updates(settings)
        except UserError as error:
            raise UserError(f"experiments.{name}: {error}") from error
        if heads and settings.compute != "float32":
            raise UserError(f"experiments.{name}: training.compute: prediction heads need float32.")
        _check_name(name, arm)


def _check_updates(settings: Training) -> None:
    """UserError for incompatible numbers of steps, updates and batches."""
    updates, responses = settings.updates_per_batch, settings.prompts_per_step * settings.group
    if updates > responses:
        raise UserError(
            f"training.updates_per_batch: {updates} updates of a batch of {responses} responses; each update "
            "needs at least one response."
        )
    if settings.warmup_updates > (total := settings.steps * settings.updates_of_batch):
        raise UserError(
            f"training.warmup_updates: {settings.warmup_updates} is more than the {total} optimizer steps of the run."
        )
    if settings.off_policy_steps >= settings.steps:
        raise UserError(
            f"training.off_policy_steps: {settings.off_policy_steps} must be less than training.steps "
            f"({settings.steps})."
        )


def _check_name(experiment: str, arm: Arm) -> None:
    """UserError if the name of an arm cannot name a folder."""
    if (invalid := re.search(r"[^A-Za-z0-9_.+=-]", arm.name)) is not None:
        raise UserError(
            f"experiments.{experiment}.vary: {arm.name!r} contains {invalid[0]!r} and cannot name a folder; only "
            "keys whose values are numbers or words can be varied. Write one study per value instead."
        )
    if len(arm.name) > LONGEST_ARM:
        raise UserError(
            f"experiments.{experiment}.vary: {arm.name!r} has {len(arm.name)} characters, too many to name a folder "
            f"(at most {LONGEST_ARM}). Vary fewer keys, or write one study per value."
        )
    if arm.name == START:
        raise UserError(f"experiments.{experiment}.methods: {START!r} is reserved for the initial models.")
