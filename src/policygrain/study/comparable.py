"""Comparisons of a study, and checks of rules 1, 2 (equal steps), 4 (tuning) and 8 (seeds) of docs/statistics.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..objective.method import TEXTS
from .dependencies import start_seeds
from .load import load_study
from .runs import Arm, RunMatrix, arms_of, run_matrix
from .schema import Study

if TYPE_CHECKING:
    from ..objective import Method

HEADLINE = "headline"  # the experiment whose methods are compared as wholes
RULE = "(rule {} of docs/statistics.md)"
# Settings that change the number of optimizer steps, responses or prompts of a run.
SIZES = ("steps", "prompts_per_step", "group", "updates_per_batch", "epochs")
RATIO_AND_CLIP = {"ratio", "clip"}  # each ratio has its own clip range


class Pair(NamedTuple):
    """Two arms that are compared: ``arm`` minus ``reference``, with equal steps, samples and seeds."""

    experiment: str
    arm: Arm
    reference: Arm
    margin: float | None = None  # in points; differences shown to be smaller are reported as such
    whole: bool = False  # whole methods, which may differ in several parts


def pairs(study: Study) -> list[Pair]:
    """All comparisons of a study, each once: of experiments, ages of rollouts, and whole methods."""
    matrix = run_matrix(study)
    by_arms: dict[tuple[str, str], Pair] = {}
    for pair in (*_planned(study), *_ages(study, matrix), *_whole_methods(study, matrix)):
        by_arms.setdefault((pair.arm.name, pair.reference.name), pair)
    return list(by_arms.values())


def _planned(study: Study) -> Iterator[Pair]:
    """In the order of an experiment's arms: each method with the `reference`, then the pairs under `compare`."""
    for name, experiment in study.experiments.items():
        for arm in arms_of(experiment, study):
            for one, other in experiment.comparisons:
                if one == arm.method_name:
                    yield Pair(name, arm, Arm.of(study, other, arm.settings), experiment.margin)


def _ages(study: Study, matrix: RunMatrix) -> Iterator[Pair]:
    """The reference with and without `off_policy_steps`, with otherwise equal settings: the effect of staleness."""
    for name, experiment in study.experiments.items():
        for arm in arms_of(experiment, study):
            if arm.method_name == experiment.reference and arm.training.off_policy_steps:
                settings = arm.training.model_copy(update={"off_policy_steps": 0})
                for fresh in matrix.arms.values():
                    if (fresh.method_name, fresh.training) == (arm.method_name, settings):
                        yield Pair(name, arm, fresh, experiment.margin)


def _whole_methods(study: Study, matrix: RunMatrix) -> Iterator[Pair]:
    """In experiments without comparisons: variants with their bases, other methods of the headline with its first."""
    for name, experiment in study.experiments.items():
        for arm in () if experiment.comparisons else arms_of(experiment, study):
            base = _trained_base(study, matrix, arm)
            if base is None and name == HEADLINE and arm.method_name != experiment.methods[0]:
                base = Arm.of(study, experiment.methods[0], arm.settings)
            if base is not None:
                yield Pair(name, arm, base, whole=True)


def _trained_base(study: Study, matrix: RunMatrix, arm: Arm) -> Arm | None:
    """The nearest base that is trained with the settings of ``arm``; None if there is none."""
    by_method = {other.method_name: other for other in matrix.arms.values() if other.settings == arm.settings}
    name = arm.method.base
    while name is not None and name not in by_method:
        name = study.method(name).base
    return None if name is None else by_method[name]


def different_parts(one: Method, other: Method) -> list[str]:
    """The keys in which two methods differ."""
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
                f"{where}: experiments.{name}.vary.{changed[0]} changes the number of optimizer steps or responses, so "
                "runs with different values are not comparable; make an experiment for each value "
                f"{RULE.format(2)}."
            )
        if len(seeds := experiment.seeds or study.seeds) == 1:
            key = "seeds" if experiment.seeds is None else f"experiments.{name}.seeds"
            raise UserError(
                f"{where}: a comparison with one seed ({key}: {seeds}) has no confidence interval. Use several seeds, "
                f"or compare nothing {RULE.format(8)}."
            )
    for pair in _planned(study):
        parts = different_parts(pair.arm.method, pair.reference.method)
        if len(parts) > 1 and not set(parts) <= RATIO_AND_CLIP:
            raise UserError(
                f"experiments.{pair.experiment}: {pair.arm.method_name!r} differs from "
                f"{pair.reference.method_name!r} in {' and '.join(parts)}. Compare methods that differ in one part, or "
                f"in the ratio and its clip range {RULE.format(1)}."
            )


def check_tuning(study: Study) -> None:
    """UserError if this study shares problems, seeds or initial models of its own with a study in `tuned_on`.

    A shared pretrained model is allowed, with a note by `policygrain check`.
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
        are_made = study.model.is_made and other.model.is_made
        if are_made and (same := _shared(start_seeds(study), start_seeds(other))):
            _refuse(path, "seeds", f"initial models {same} belong to both")


def _refuse(path: str, key: str, reason: str) -> None:
    raise UserError(
        f"{key}: {reason} this study and {path}, which chose its settings (tuned_on). Choose other values in one of "
        f"them and run it again: settings must be evaluated on data that did not choose them {RULE.format(4)}."
    )


def _training_seeds(study: Study) -> list[int]:
    return sorted({run.seed for run in run_matrix(study).runs})


def _shared(one: Sequence[object], other: Sequence[object]) -> str:
    return ", ".join(str(value) for value in one if value in other)
