"""Checks of a study file that involve several keys; imports no torch."""

from __future__ import annotations

import re

from ..errors import UserError, did_you_mean
from ..objective import comparison_names, method, method_names
from .runs import START, Arm, arms_of, run_matrix
from .schema import Estimators, Experiment, Rounds, Study, Training
from .sections import distinct

LONGEST_ARM = 150  # characters; folder names, with what is added to an arm's name, have at most 255 bytes


def check_keys(study: Study) -> None:
    """UserError for the first key that contradicts another one; the message says how to correct it."""
    _check_alone(study)
    for name in study.methods:
        method(name, study.methods)
    check_instruments(study)
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


def check_instruments(study: Study) -> None:
    """Check the sections `estimators` and `rounds`, where a study has them."""
    for where, section in (("estimators", study.estimators), ("rounds", study.rounds)):
        if section is not None:
            _check_instrument(study, where, section)


def _check_instrument(study: Study, where: str, section: Estimators | Rounds) -> None:
    names, reference, training = section.methods, section.reference, study.training
    known = [*study.methods, *method_names(), *comparison_names()]
    for name in names:
        if name not in known:
            raise UserError(f"{where}.methods: no method is called {name!r}.{did_you_mean(name, known)}")
        chosen = method(name, study.methods)
        if "staleness" in chosen.needs:
            raise UserError(
                f"{where}.methods: {name!r} needs the age of rollouts (anchor: loglinear), which is not varied here; "
                "leave it out, or measure it in a run with training.off_policy_steps."
            )
        if chosen.n_mtp_heads:
            raise UserError(
                f"{where}.methods: {name!r} needs prediction heads, which are not trained here; leave it out, or "
                "measure its variant with `ratio: {future: backbone}`."
            )
    if reference not in names:
        raise UserError(
            f"{where}.reference: {reference!r} is not one of {where}.methods. Add it there."
            f"{did_you_mean(reference, names)}"
        )
    if max(section.steps) > training.steps:
        raise UserError(f"{where}.steps: {max(section.steps)} is more than training.steps ({training.steps}).")
    if not max(section.updates):
        raise UserError(f"{where}.updates: all ratios are 1 after 0 updates; add a larger number.")
    if max(section.steps):
        try:
            _check_updates(training)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error


def check_prompts(where: str, section: Estimators | Rounds, available: int) -> None:
    """UserError if the rollouts of one policy need more prompts than the ``available`` training problems.

    With fewer problems, prompts would repeat and batches would not be independent.
    """
    per_update = section.prompts_per_update
    needed = {"updates": max(section.updates) * per_update}
    if isinstance(section, Estimators):
        needed |= {"batches": section.batches * per_update, "true_prompts": section.true_prompts}
    for key, count in needed.items():
        if count > available:
            raise UserError(
                f"{where}.{key}: needs {count} prompts, but there are {available} training problems "
                f"(prompts_per_update is {per_update}). Choose fewer, or a larger data.train_size."
            )
