"""Arms and runs: the training runs that the experiments of a study define.

An arm is a method with certain training settings; a run is an arm with a seed. A run that occurs in several experiments
is trained once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from ..errors import UserError, explained
from ..objective import Method
from .schema import Experiment, Study, Training

START = "start"  # the name of the initial models among the arms that are evaluated


@dataclass(frozen=True)
class Arm:
    """A method with training settings. Arms of one study are equal if their names are."""

    name: str  # in folders, tables and on the command line: `tepo`, `tepo+updates_per_batch=8`
    method: Method = field(compare=False)
    training: Training = field(compare=False)
    settings: tuple[tuple[str, Any], ...] = field(default=(), compare=False)  # those that are not the study's

    @classmethod
    def of(cls, study: Study, method_name: str, settings: tuple[tuple[str, Any], ...] = ()) -> Arm:
        """The arm of a method with changes to the study's training settings. UserError for a wrong name or value."""
        # No comma, which separates the wildcards that Snakemake passes to a job.
        name = "+".join([method_name, *(f"{key}={value}" for key, value in settings)])
        try:
            changes = dict(settings)
            if changes.get("trainer", study.training.trainer) == "command":  # which may have keys of its own
                changes = {key: value for key, value in settings if key in Training.model_fields}
            training = Training.model_validate({**study.training.model_dump(), **changes})
            method = study.method(method_name)
            if training.trainer == "command":  # its methods are names: it does not read their parts
                method = Method(**{key: getattr(method, key) for key in ("name", "label", "summary", "source")})
            return cls(name, method, training, settings)
        except ValidationError as error:
            raise UserError(explained(error, "vary")) from error
        except UserError as error:
            raise UserError(f"methods: {error}") from error

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return self.method.name


@dataclass(frozen=True, order=True)
class Run:
    """An arm with a seed: one training run."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run's model in evaluations, and its folder under `runs/`."""
        return f"{self.arm}/seed{self.seed}"


@dataclass(frozen=True)
class RunMatrix:
    """Every run of a study, in total and by experiment."""

    arms: dict[str, Arm]
    runs: list[Run]
    evaluated: list[Run]
    experiments: dict[str, list[Run]]

    @cached_property
    def evaluated_arms(self) -> frozenset[str]:
        """Arms whose final models are evaluated."""
        return frozenset(run.arm for run in self.evaluated)

    def by_arm(self) -> dict[str, list[Run]]:
        """The runs of each arm."""
        runs_of: dict[str, list[Run]] = {}
        for run in self.runs:
            runs_of.setdefault(run.arm, []).append(run)
        return runs_of


def arms_of(experiment: Experiment, study: Study) -> list[Arm]:
    """The arms of one experiment: every method with every combination of `vary`. UserError for a wrong one.

    Values that equal the study's training settings are not part of an arm's name.
    """
    arms = []
    for method_name in experiment.methods:
        for values in itertools.product(*experiment.vary.values()):
            pairs = zip(experiment.vary, values, strict=True)
            changed = tuple((key, value) for key, value in pairs if getattr(study.training, key, None) != value)
            arms.append(Arm.of(study, method_name, changed))
    return arms


def run_matrix(study: Study) -> RunMatrix:
    """All arms and runs of a study, each once, in the order of its experiments."""
    arms: dict[str, Arm] = {}
    experiments: dict[str, list[Run]] = {}
    for name, experiment in study.experiments.items():
        of_experiment = {arm.name: arm for arm in arms_of(experiment, study)}
        arms |= of_experiment
        seeds = experiment.seeds or study.seeds
        experiments[name] = [Run(arm_name, seed) for arm_name in of_experiment for seed in seeds]
    runs = dict.fromkeys(run for of_experiment in experiments.values() for run in of_experiment)
    evaluated = dict.fromkeys(
        run for name, experiment in study.experiments.items() if experiment.evaluate for run in experiments[name]
    )
    return RunMatrix(arms, list(runs), list(evaluated), experiments)


def methods_of(study: Study) -> list[Method]:
    """The methods that a study defines or trains."""
    return list((study.methods | {arm.method.name: arm.method for arm in run_matrix(study).arms.values()}).values())
