"""Rules 1 and 2 of docs/design.md: methods that are compared differ in one part, with equal steps and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError, did_you_mean
from ..methods.method import TEXTS
from .runs import Arm, arms_of
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
    """UserError for a `reference` that breaks rule 1 or 2, or that is not in its experiment."""
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
    for pair in pairs(study):
        parts = different_parts(pair.arm.method(study), pair.reference.method(study))
        no_ratio = pair.reference.method(study).ratio.name == "none"
        if len(parts) > 1 and not (parts == ["ratio", "clip"] and no_ratio):
            raise UserError(
                f"experiments.{pair.experiment}.reference: {pair.arm.method_name!r} differs from "
                f"{pair.reference.method_name!r} in {' and '.join(parts)}. Compare methods that differ in one part, or "
                f"leave `reference` out {RULE.format(1)}."
            )
