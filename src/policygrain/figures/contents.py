"""Arms, methods and benchmarks of a study in each figure; empty where the study has none."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

from ..objective import Method, method
from ..objective.method import TEXTS
from ..objective.ratio import Block
from ..study import Study
from ..study.runs import arms_of, run_matrix
from ..tasks.registry import sampling_of

# TEPO, and with each other regularisation of entropy; ratios, without one as the last.
ENTROPY_ARMS = ("tepo", "tepo_v1", "tepo_max_entropy", "tepo_full_kl")
RATIO_ARMS = ("token", "block", "sequence", "prefix", "reinforce")


def headline(study: Study) -> list[str]:
    """The arms of the headline with the study's own settings; all of them where each differs in some setting."""
    experiment = study.experiments.get("headline")
    arms = [arm.name for arm in arms_of(experiment, study)] if experiment else []
    return [arm for arm in arms if "+" not in arm] or arms


def beside_grpo(study: Study) -> list[str]:
    """The other arms of a headline with GRPO."""
    arms = headline(study)
    return [arm for arm in arms if arm != "grpo"] if "grpo" in arms else []


def with_clip_higher(study: Study) -> list[str]:
    """The headline and, if the ablation has it, GRPO with Clip-Higher (TEPO's figure 3)."""
    ablation = study.experiments.get("ablation")
    added = ["grpo_clip_higher"] if ablation and "grpo_clip_higher" in ablation.methods else []
    return list(dict.fromkeys([*headline(study), *added]))


def at_least_two(names: Iterable[str], study: Study) -> list[str]:
    """Those of the arms that the study has, if there are two or more."""
    arms = run_matrix(study).arms
    there = [name for name in names if name in arms]
    return there if len(there) > 1 else []


entropy_arms = partial(at_least_two, ENTROPY_ARMS)
ratio_arms = partial(at_least_two, RATIO_ARMS)


def sampled_benchmarks(study: Study) -> list[str]:
    """Benchmarks with several responses per problem."""
    return [b.name for b in study.evaluation.benchmarks if sampling_of(study, b).n > 1]


def references(study: Study) -> list[str]:
    """The methods that others of their experiment are compared with."""
    return list(dict.fromkeys(e.reference for e in study.experiments.values() if e.reference is not None))


def map_of_regimes(study: Study) -> str | None:
    """The first experiment with a reference and two training settings that vary."""
    named = study.experiments.items()
    return next((name for name, e in named if e.reference is not None and len(e.vary) == 2), None)


def without_clip(study: Study, names: Iterable[str]) -> dict[str, str]:
    """Method → its ratio in words, of those with a ratio and without a clip."""
    methods = {name: method(name, study.methods) for name in names}
    return {n: m.ratio.label for n, m in methods.items() if m.clip.name == "none" and m.ratio.name != "none"}


def block_sweep(
    study: Study, parameter: str, section: Literal["estimators", "rounds"]
) -> tuple[dict[float, str], bool]:
    """Value of a parameter of block ratios → method measured in ``section``, and True; else evaluated arm, and False.

    All else is as in MPO's default, and equal but for the sampler. Empty if there is only one value.
    """
    measured = getattr(study, section)
    by_value = _by_parameter(study, measured.methods if measured else (), parameter)
    if by_value:
        return by_value, True
    arms = (run.arm for run in run_matrix(study).evaluated if "+" not in run.arm)
    return _by_parameter(study, arms, parameter), False


def _by_parameter(study: Study, names: Iterable[str], parameter: str) -> dict[float, str]:
    default = Block().settings
    groups: dict[str, dict[float, str]] = {}
    for name in dict.fromkeys(names):
        chosen: Method = method(name, study.methods)
        settings = chosen.ratio.settings
        if isinstance(chosen.ratio, Block) and settings == default | {parameter: settings[parameter]}:
            rest = {k: v for k, v in chosen.data().items() if k not in ("ratio", "sampler", *TEXTS)}
            groups.setdefault(str(rest), {}).setdefault(float(settings[parameter]), name)
    largest = max(groups.values(), key=len, default={})
    return dict(sorted(largest.items())) if len(largest) > 1 else {}
