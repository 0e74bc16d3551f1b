"""What each figure shows of a study, which `check` asks before anything is trained; and the names of it in texts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..data.sets import sampling_of
from ..errors import UserError, did_you_mean
from ..objective import comparison_names, method, method_names
from ..study import Study
from ..study.runs import START, Pair, arms_of, different_parts, run_matrix
from ..study.schema import distinct

if TYPE_CHECKING:
    from ..results import StudyResults

# TEPO and its variants with other regularisers of entropy; methods with each ratio, and one without a ratio.
ENTROPY_ARMS = ("tepo", "tepo_v1", "tepo_max_entropy", "tepo_full_kl")
RATIO_ARMS = ("token", "block", "sequence", "prefix", "tepo_v1", "prefix_is", "reinforce")


def headline(study: Study) -> list[str]:
    """The headline's arms with the study's own training settings; if there are none, all arms of the headline."""
    experiment = study.experiments.get("headline")
    arms = [arm.name for arm in arms_of(experiment, study)] if experiment else []
    return [arm for arm in arms if "+" not in arm] or arms


def evaluated_headline(study: Study) -> list[str]:
    return headline(study) if "headline" in study.experiments and study.experiments["headline"].evaluate else []


def at_least_two(names: Iterable[str], study: Study) -> list[str]:
    """The items of ``names`` that are arms of the study; empty if there are fewer than two."""
    there = [name for name in names if name in run_matrix(study).arms]
    return there if len(there) > 1 else []


def sweeps(study: Study) -> Mapping[str, Mapping[str, float]]:
    """The sweeps of the study. UserError for a method whose final models are not evaluated, and for equal values."""
    evaluated = run_matrix(study).evaluated_arms
    for parameter, values in study.sweeps.items():
        if unknown := [arm for arm in values if arm not in evaluated]:
            hint = did_you_mean(unknown[0], evaluated)
            raise UserError(f"sweeps.{parameter}: {unknown[0]!r} is in no experiment that is evaluated.{hint}")
        if len({*values.values()}) < len(values):
            raise UserError(f"sweeps.{parameter}: two methods have the same value.")
    return study.sweeps


HEADLINE = ("an experiment named 'headline'", headline)
ARMS = "at least 2 of these methods in experiments: {}"
# Figure → what a study must have for it, in words, and what the figure shows; empty where the study lacks it.
SHOWN: dict[str, tuple[str, Callable[[Study], Any]]] = {
    "benchmarks": ("an experiment named 'headline' that is evaluated", evaluated_headline),
    "dynamics": HEADLINE,
    "clip_ratio": HEADLINE,
    "entropy_regularisation": (ARMS.format(", ".join(ENTROPY_ARMS)), functools.partial(at_least_two, ENTROPY_ARMS)),
    "importance_sampling": (ARMS.format(", ".join(RATIO_ARMS)), functools.partial(at_least_two, RATIO_ARMS)),
    "convergence": (
        "grpo and another method in the experiment 'headline'",
        lambda study: [arm for arm in headline(study) if arm != "grpo" and "grpo" in headline(study)],
    ),
    "sweep": ("`sweeps`: each a parameter, in it evaluated methods with its values", sweeps),
    "pass_at_k": (
        "a benchmark with several responses per problem; set `sampling: {n: 8, temperature: 1.0}`",
        lambda study: [b.name for b in study.evaluation.benchmarks if sampling_of(study, b).n > 1],
    ),
}


def shown_by(name: str, study: Study) -> Any:
    """What the figure ``name`` shows of the study. UserError if that is nothing."""
    needs, shows = SHOWN[name]
    if not (found := shows(study)):
        raise UserError(f"figures: {name!r} needs {needs}.")
    return found


def check_figures(study: Study) -> None:
    """UserError for the first figure that cannot be drawn from the runs of the study, and for arms of one label."""
    try:
        distinct([labels(study)(arm) for arm in run_matrix(study).arms])
    except ValueError as error:
        raise UserError(f"methods: {error}, which is the label of two arms; set `label`.") from error
    for name in study.figures:
        shown_by(name, study)


def counted(number: object, word: str) -> str:
    return f"{number} {word}{'' if str(number) == '1' else 's'}"


SETTINGS: dict[str, Callable[[str], str]] = {
    "updates_per_batch": lambda updates: counted(updates, "update"),
    "epochs": lambda epochs: counted(epochs, "epoch"),
    "off_policy_steps": lambda steps: f"rollouts {counted(steps, 'step')} old" if steps != "0" else "on-policy",
    "learning_rate": lambda rate: f"learning rate {float(rate):g}",
}


def setting_text(key: str, value: object) -> str:
    """A training setting: `16 updates`, `group 4`."""
    return SETTINGS[key](str(value)) if key in SETTINGS else f"{key.replace('_', ' ')} {value}"


def labels(study: Study) -> Callable[[str], str]:
    """Function from an arm or method to its name in figures and tables: `TEPO, 16 updates`.

    The name of a method is its `label`. Without a label, the key `BASE_REST` of a variant of BASE becomes the name of
    BASE and `REST`; any other key is the name, with spaces.
    """

    def of_method(name: str) -> str:
        if name == START:
            return "initial model"
        changes, presets = study.methods.get(name), (*method_names(), *comparison_names())
        if label := (changes and changes.label) or (method(name).label if name in presets else ""):
            return label
        base = changes.base if changes else None
        if base and name.startswith(f"{base}_"):
            return f"{of_method(base).removesuffix(' ratio')}, {name.removeprefix(f'{base}_').replace('_', ' ')}"
        return name.replace("_", " ")

    def label(arm: str) -> str:
        name, *settings = arm.split("+")
        return ", ".join([of_method(name), *(setting_text(*setting.split("=", 1)) for setting in settings)])

    return label


def name_of(results: StudyResults, arm: str) -> str:
    """The label of an arm, with a note if training made no optimizer step."""
    return labels(results.study)(arm) + (" (no updates)" if arm in results.untrained else "")


def pair_text(study: Study, pair: Pair) -> str:
    """`token, clipped − no ratio`, with the parts in which whole methods differ.

    Where only the age of rollouts differs, `no ratio: 48 steps old − on-policy`.
    """
    one, other, label = pair.arm, pair.reference, labels(study)
    if one.method_name == other.method_name:
        return f"{label(one.method_name)}: {counted(one.training.off_policy_steps, 'step')} old − on-policy"
    parts = ", ".join(different_parts(one.method, other.method))
    return f"{label(one.method_name)} − {label(other.method_name)}" + f" (whole methods: {parts})" * pair.whole
