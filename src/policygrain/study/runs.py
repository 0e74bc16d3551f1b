"""Arms and runs: what a study's experiments come to.

An arm is a method under certain training settings; a run is an arm with a seed. Two experiments that ask for the same
run share it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..errors import UserError, did_you_mean
from .schema import Experiment, Study, Training

if TYPE_CHECKING:
    from ..methods import Method


@dataclass(frozen=True)
class Arm:
    """A method and the training keys that differ from the study's."""

    method_name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """As in folders, tables and on the command line: `tepo`, `tepo+updates_per_batch=8`.

        No comma: Snakemake hands a job's wildcards on as text that is split there.
        """
        return "+".join([self.method_name, *(f"{key}={value}" for key, value in self.settings)])

    def training(self, study: Study) -> Training:
        """The study's training settings with this arm's own."""
        try:
            return Training.model_validate({**study.training.model_dump(), **dict(self.settings)})
        except ValidationError as error:
            key = ".".join(str(part) for part in error.errors()[0]["loc"])
            hint = did_you_mean(key, Training.model_fields) if key not in Training.model_fields else ""
            raise UserError(f"vary.{key}: {error.errors()[0]['msg']}.{hint}") from error

    def method(self, study: Study) -> Method:
        """The method, with what the study says of it."""
        from ..methods import method

        return method(self.method_name, study.methods)


@dataclass(frozen=True, order=True)
class Run:
    """An arm with a seed: one training run."""

    arm: str
    seed: int

    @property
    def folder(self) -> str:
        """Its run directory, under the study's results."""
        return f"runs/{self.arm}/seed{self.seed}"


@dataclass
class RunMatrix:
    """Every run of a study, and which experiments want it."""

    arms: dict[str, Arm] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    evaluated: list[Run] = field(default_factory=list)
    experiments: dict[str, list[Run]] = field(default_factory=dict)

    def processes(self, seeds_per_process: int) -> list[list[Run]]:
        """Runs that one training process takes one after the other: some seeds of one arm."""
        by_arm: dict[str, list[Run]] = {}
        for run in self.runs:
            by_arm.setdefault(run.arm, []).append(run)
        return [part for runs in by_arm.values() for part in _batched(runs, seeds_per_process)]

    def __iter__(self) -> Any:
        return iter(self.arms.values())


def _batched(runs: list[Run], size: int) -> Iterator[list[Run]]:
    return (runs[i : i + size] for i in range(0, len(runs), size))


def arms_of(experiment: Experiment, study: Study) -> list[Arm]:
    """The arms of one experiment: methods × every combination of `vary`, study defaults left out of the name."""
    arms = []
    for method_name in experiment.methods:
        for values in itertools.product(*experiment.vary.values()):
            pairs = zip(experiment.vary, values, strict=True)
            own = tuple((key, value) for key, value in pairs if getattr(study.training, key, None) != value)
            arms.append(Arm(method_name, own))
    return arms


def run_matrix(study: Study) -> RunMatrix:
    """Arms and runs, headline first, each once."""
    result = RunMatrix()
    for name, experiment in study.experiments.items():
        runs = result.experiments[name] = []
        for arm in arms_of(experiment, study):
            result.arms.setdefault(arm.name, arm)
            for seed in experiment.seeds if experiment.seeds is not None else study.seeds:
                run = Run(arm.name, seed)
                runs.append(run)
                if run not in result.runs:
                    result.runs.append(run)
                if experiment.evaluate and run not in result.evaluated:
                    result.evaluated.append(run)
    return result


def check_methods(study: Study) -> None:
    """Run every method of the study on a small example, its own functions included. UserError names the key."""
    from ..methods import method

    for name in dict.fromkeys([*study.methods, *(arm.method_name for arm in run_matrix(study))]):
        method(name, study.methods).check()


def digest(study: Study) -> str:
    """A name for all that decides the study's numbers: results of the same digest are of the same study."""
    matrix = run_matrix(study)
    content = {
        "runs": [[run.arm, run.seed] for run in matrix.runs],
        "arms": {
            name: [
                arm.method(study).data() | {"summary": "", "source": ""},
                arm.training(study).deciding(),
            ]
            for name, arm in matrix.arms.items()
        },
        "grader": study.grader,
        # Keys that say what is the default anyway are left out: a new key must not make old results another study's.
        # How many jobs share the work decides nothing.
        **{
            part: getattr(study, part).model_dump(
                mode="json", exclude_defaults=True, exclude={"parts", "runs_per_engine"}
            )
            for part in ("model", "prompt", "data", "evaluation")
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
