"""Checks of the sections `estimators` and `rounds` that involve several keys; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError, did_you_mean
from ..methods import method, method_names
from .design import Estimators, Rounds
from .schema import Study


def check_instruments(study: Study) -> None:
    """Check the sections that a study has. UserError names the first key that is wrong, and what to write instead."""
    for where, section in (("estimators", study.estimators), ("rounds", study.rounds)):
        if section is not None:
            _check_methods(study, where, section)
            _check_numbers(study, where, section)
    if (spec := study.estimators) is not None:
        for key, count in (("batches", spec.batches), ("true_prompts", spec.true_prompts)):
            if count < 3:  # one is left out at a time, and the squared mean of the rest is estimated
                raise UserError(f"estimators.{key}: an interval needs at least 3, not {count}.")


def _check_methods(study: Study, where: str, section: Estimators | Rounds) -> None:
    names, reference = section.methods, section.reference
    if (twice := _repeated(names)) is not None:
        raise UserError(f"{where}.methods: {twice!r} is there twice.")
    known = [*study.methods, *method_names()]
    for name in names:
        if name not in known:
            raise UserError(f"{where}.methods: no method is called {name!r}.{did_you_mean(name, known)}")
        if method(name, study.methods).n_mtp_heads:
            raise UserError(
                f"{where}.methods: {name!r} needs prediction heads, which are not trained here; leave it out, or "
                "measure its form with `ratio: {future: backbone}`."
            )
    if reference not in names:
        raise UserError(
            f"{where}.reference: {reference!r} is not one of {where}.methods, which are compared with it. Add it there."
            f"{did_you_mean(reference, names)}"
        )


def _check_numbers(study: Study, where: str, section: Estimators | Rounds) -> None:
    for key, numbers in (("steps", section.steps), ("updates", section.updates)):
        if (twice := _repeated(numbers)) is not None:
            raise UserError(f"{where}.{key}: {twice} is there twice.")
    training = study.training
    if training.group < 2:
        raise UserError(f"{where}: training.group: a group of one response has no advantage; the smallest is 2.")
    if max(section.steps) and training.updates_per_batch > training.prompts_per_step * training.group:
        raise UserError(
            f"{where}: training.updates_per_batch: {training.updates_per_batch} updates of a batch of "
            f"{training.prompts_per_step * training.group} responses; there must be at least one per update."
        )


def check_prompts(where: str, section: Estimators | Rounds, available: int) -> None:
    """UserError if the rollouts of one policy need more prompts than the ``available`` training problems.

    With fewer problems, prompts would come twice and the batches would not be independent.
    """
    per_update = section.prompts_per_update
    needed = {"updates": max(section.updates) * per_update}
    if isinstance(section, Estimators):
        needed |= {"batches": section.batches * per_update, "true_prompts": section.true_prompts}
    for key, count in needed.items():
        if count > available:
            raise UserError(
                f"{where}.{key}: needs {count} prompts, and there are {available} training problems "
                f"(prompts_per_update is {per_update}). Choose fewer, or a larger data.train_size."
            )


def _repeated(values: Sequence[object]) -> object | None:
    return next((value for value in values if values.count(value) > 1), None)
