"""Rules of docs/design.md that a study file can break: one switch (1), equal steps (2), tuning apart (4), seeds (8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError, did_you_mean
from ..methods.method import TEXTS
from .fingerprint import start_seeds
from .load import load_study
from .runs import Arm, arms_of, run_matrix
from .schema import Study

if TYPE_CHECKING:
    from ..methods import Method

RULE = "(rule {} of docs/design.md)"
# Settings that change the number of optimizer steps, responses or prompts of a run.
SIZES = ("steps", "prompts_per_step", "group", "updates_per_batch", "epochs")


class Pair(NamedTuple):
    """A method and the reference of its experiment, with the same training settings."""

    experiment: str
    arm: Arm
    reference: Arm


def pairs(study: Study) -> list[Pair]:
    """All comparisons of the experiments that have a `reference`, in the order of their arms."""
    found = []
    for name, experiment in study.experiments.items():
        if experiment.reference is not None:
            found += [
                Pair(name, arm, Arm(experiment.reference, arm.settings))
                for arm in arms_of(experiment, study)
                if arm.method_name != experiment.reference
            ]
    return found


def different_parts(one: Method, other: Method) -> list[str]:
    """The keys in which two methods differ."""
    first, second = one.data(), other.data()
    keys = dict.fromkeys([*first, *second])
    return [key for key in keys if key not in TEXTS and first.get(key) != second.get(key)]


def check_references(study: Study) -> None:
    """UserError for a `reference` that breaks rule 1, 2 or 8, or that is not in its experiment."""
    for name, experiment in study.experiments.items():
        where = f"experiments.{name}.reference"
        if experiment.reference is None:
            continue
        if experiment.reference not in experiment.methods:
            hint = did_you_mean(experiment.reference, experiment.methods)
            raise UserError(f"{where}: {experiment.reference!r} is not one of experiments.{name}.methods.{hint}")
        if changed := [key for key in experiment.vary if key in SIZES]:
            raise UserError(
                f"{where}: experiments.{name}.vary.{changed[0]} changes the number of optimizer steps or responses, so "
                f"its values are not regimes of one comparison; make an experiment for each {RULE.format(2)}."
            )
        if len(seeds := experiment.seeds or study.seeds) == 1:
            key = "seeds" if experiment.seeds is None else f"experiments.{name}.seeds"
            raise UserError(
                f"{where}: a comparison with one seed ({key}: {seeds}) has no interval. Give it several, or leave "
                f"`reference` out {RULE.format(8)}."
            )
    for pair in pairs(study):
        parts = different_parts(pair.arm.method(study), pair.reference.method(study))
        no_ratio = pair.reference.method(study).ratio.name == "none"
        if len(parts) > 1 and not (parts == ["ratio", "clip"] and no_ratio):
            raise UserError(
                f"experiments.{pair.experiment}.reference: {pair.arm.method_name!r} differs from "
                f"{pair.reference.method_name!r} in {' and '.join(parts)}. Compare methods that differ in one part, or "
                f"leave `reference` out {RULE.format(1)}."
            )


def check_tuning(study: Study) -> None:
    """UserError if a study that chose settings of this one (`tuned_on`) has problems, seeds or start models of it.

    A pretrained start model may be the same: there, settings are chosen for this model and judged on it (`gate.notes`).
    """
    for path in study.tuned_on:
        try:
            other = load_study(path)
        except UserError as error:
            raise UserError(f"tuned_on: {error}") from error
        if study.data.seed == other.data.seed and (same := _shared(study.data.train, other.data.train)):
            _refuse(path, "data.seed", f"{study.data.seed} makes the same problems ({same}) for")
        if same := _shared(_training_seeds(study), _training_seeds(other)):
            _refuse(path, "seeds", f"training seeds {same} belong to both")
        are_tiny = study.model.start == "tiny" == other.model.start
        if are_tiny and (same := _shared(start_seeds(study), start_seeds(other))):
            _refuse(path, "seeds", f"start models {same} belong to both")


def _refuse(path: str, key: str, reason: str) -> None:
    raise UserError(
        f"{key}: {reason} this study and {path}, which chose its settings (tuned_on). Choose other values in one of "
        f"them and run it again: what settings are chosen on judges nothing {RULE.format(4)}."
    )


def _training_seeds(study: Study) -> list[int]:
    return sorted({run.seed for run in run_matrix(study).runs})


def _shared(one: Sequence[object], other: Sequence[object]) -> str:
    return ", ".join(str(value) for value in one if value in other)
