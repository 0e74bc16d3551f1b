"""Arms, runs and comparisons: what the experiments of a study define.

An arm is a method with certain training settings; a run is an arm with a seed. A run that occurs in several experiments
is trained once. Comparisons are checked for rules 1, 2 (equal steps) and 8 (seeds) of docs/statistics.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import UserError, explained
from ..objective import Method
from ..objective.method import TEXTS
from .schema import Experiment, Study, Training

START = "start"  # the name of the initial models among the arms that are evaluated
HEADLINE = "headline"  # the experiment whose methods are compared as wholes
RULE = "(rule {} of docs/statistics.md)"
# Settings that change the number of optimizer steps, responses or prompts of a run.
SIZES = ("steps", "prompts_per_step", "group", "updates_per_batch", "epochs")


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
    """Every arm and run of a study, and the runs whose final models are evaluated."""

    arms: dict[str, Arm]
    runs: list[Run]
    evaluated: list[Run]

    @cached_property
    def evaluated_arms(self) -> frozenset[str]:
        return frozenset(run.arm for run in self.evaluated)

    def by_arm(self) -> dict[str, list[Run]]:
        return {arm: [run for run in self.runs if run.arm == arm] for arm in self.arms}


def arms_of(experiment: Experiment, study: Study) -> list[Arm]:
    """The arms of one experiment: every method with every combination of `vary`. UserError for a wrong one."""
    arms = []
    for method_name in experiment.methods:
        for values in itertools.product(*experiment.vary.values()):
            varied = zip(experiment.vary, values, strict=True)
            changed = tuple((key, value) for key, value in varied if getattr(study.training, key, None) != value)
            arms.append(Arm.of(study, method_name, changed))  # what is as in the study is not in its name
    return arms


def run_matrix(study: Study) -> RunMatrix:
    """All arms and runs of a study, each once, in the order of its experiments."""
    arms: dict[str, Arm] = {}
    runs: list[Run] = []
    evaluated: list[Run] = []
    for experiment in study.experiments.values():
        of_experiment = {arm.name: arm for arm in arms_of(experiment, study)}
        arms |= of_experiment
        made = [Run(arm, seed) for arm in of_experiment for seed in experiment.seeds or study.seeds]
        runs += made
        evaluated += made if experiment.evaluate else []
    return RunMatrix(arms, list(dict.fromkeys(runs)), list(dict.fromkeys(evaluated)))


def train_rules(study: Study) -> dict[str, tuple[tuple[int | str, ...], list[str]]]:
    """The rules that train: name → seeds of a job, or the wildcard of one seed, and the arms that have them."""
    found: dict[str, tuple[tuple[int | str, ...], list[str]]] = {}
    for arm, runs in run_matrix(study).by_arm().items():
        seeds: tuple[int | str, ...] = ("{seed}",)
        if study.seeds_per_process == "all":
            seeds = tuple(sorted(run.seed for run in runs))
        listed = "_".join(map(str, seeds)) if len(seeds) < 20 else abs(hash(seeds))
        known: dict[tuple[Any, ...], str] = {("{seed}",): "train", tuple(sorted(study.seeds)): "train_arm"}
        found.setdefault(known.get(seeds, f"train_arm_{listed}"), (seeds, []))[1].append(arm)
    return found


def methods_of(study: Study) -> list[Method]:
    return list((study.methods | {arm.method.name: arm.method for arm in run_matrix(study).arms.values()}).values())


class Pair(NamedTuple):
    """Two arms that are compared: ``arm`` minus ``reference``, with equal steps, samples and seeds."""

    experiment: str
    arm: Arm
    reference: Arm
    margin: float | None = None  # in points; differences shown to be smaller are reported as such
    whole: bool = False  # whole methods, which may differ in several parts


def pairs(study: Study) -> list[Pair]:
    """All comparisons of a study, each once: of experiments, ages of rollouts, and whole methods."""
    arms = list(run_matrix(study).arms.values())
    by_arms: dict[tuple[str, str], Pair] = {}
    for pair in (*_planned(study), *_ages(study, arms), *_whole_methods(study, arms)):
        by_arms.setdefault((pair.arm.name, pair.reference.name), pair)
    return list(by_arms.values())


def _planned(study: Study) -> Iterator[Pair]:
    """In the order of an experiment's arms: each method with the `reference`, then the pairs under `compare`."""
    for name, experiment in study.experiments.items():
        for arm in arms_of(experiment, study):
            for one, other in experiment.comparisons:
                if one == arm.method_name:
                    yield Pair(name, arm, Arm.of(study, other, arm.settings), experiment.margin)


def _ages(study: Study, arms: list[Arm]) -> Iterator[Pair]:
    """The reference with and without `off_policy_steps`, with otherwise equal settings: the effect of staleness."""
    for name, experiment in study.experiments.items():
        for arm in arms_of(experiment, study):
            if arm.method_name == experiment.reference and arm.training.off_policy_steps:
                settings = arm.training.model_copy(update={"off_policy_steps": 0})
                for fresh in arms:
                    if (fresh.method_name, fresh.training) == (arm.method_name, settings):
                        yield Pair(name, arm, fresh, experiment.margin)


def _whole_methods(study: Study, arms: list[Arm]) -> Iterator[Pair]:
    """In experiments without comparisons: variants with their bases, other methods of the headline with its first."""
    for name, experiment in study.experiments.items():
        for arm in () if experiment.comparisons else arms_of(experiment, study):
            by_method = {other.method_name: other for other in arms if other.settings == arm.settings}
            base = arm.method.base
            while base is not None and base not in by_method:  # the nearest that is trained with these settings
                base = study.method(base).base
            if base is not None:
                yield Pair(name, arm, by_method[base], whole=True)
            elif name == HEADLINE and arm.method_name != experiment.methods[0]:
                yield Pair(name, arm, Arm.of(study, experiment.methods[0], arm.settings), whole=True)


def different_parts(one: Method, other: Method) -> list[str]:
    first, second = one.data(), other.data()
    keys = dict.fromkeys([*first, *second])
    return [key for key in keys if key not in TEXTS and first.get(key) != second.get(key)]


def check_comparisons(study: Study) -> None:
    """UserError for a `reference` or `compare` that breaks rule 1, 2 or 8."""
    for name, experiment in study.experiments.items():
        if not experiment.comparisons:
            continue
        where = f"experiments.{name}.{'compare' if experiment.reference is None else 'reference'}"
        if changed := [key for key in experiment.vary if key in SIZES]:
            raise UserError(
                f"{where}: experiments.{name}.vary.{changed[0]} changes the number of optimizer steps or responses; "
                f"make an experiment for each value {RULE.format(2)}."
            )
        if len(seeds := experiment.seeds or study.seeds) == 1:
            key = "seeds" if experiment.seeds is None else f"experiments.{name}.seeds"
            raise UserError(
                f"{where}: a comparison with one seed ({key}: {seeds}) has no confidence interval. Use several seeds, "
                f"or compare nothing {RULE.format(8)}."
            )
    for pair in _planned(study):
        parts = different_parts(pair.arm.method, pair.reference.method)
        if len(parts) > 1 and not set(parts) <= {"ratio", "clip"}:  # each ratio has its own clip range
            raise UserError(
                f"experiments.{pair.experiment}: {pair.arm.method_name!r} differs from "
                f"{pair.reference.method_name!r} in {' and '.join(parts)}. Compare methods that differ in one part, or "
                f"in the ratio and its clip range {RULE.format(1)}."
            )
