"""The runs and settings that each figure needs, checked before training starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ..errors import UserError
from ..objective.ratio import Block
from ..study import Study
from ..study.runs import Arm, arms_of, run_matrix
from ..tasks.registry import sampling_of
from .alike import NOT_COMPARED, resolved

ENTROPY_ARMS = ("tepo", "tepo_v1", "tepo_max_entropy", "tepo_full_kl")
RATIO_ARMS = ("token", "block", "sequence", "prefix", "reinforce")


def check_figures(study: Study) -> None:
    """UserError for the first figure that cannot be drawn from the runs of the study."""
    for name in study.figures:
        for requirement in REQUIREMENTS[name]:
            if (missing := requirement(study)) is not None:
                raise UserError(f"figures: {name!r} needs {missing}.")


Requirement = Callable[[Study], str | None]


def experiment(name: str) -> Requirement:
    """Requires an experiment with this name."""
    return lambda study: None if name in study.experiments else f"an experiment named {name!r}"


def arms(names: tuple[str, ...], least: int) -> Requirement:
    """Requires at least ``least`` of the arms ``names``, in any experiments."""

    def missing(study: Study) -> str | None:
        found = [name for name in names if name in run_matrix(study).arms]
        which = "all" if least == len(names) else f"at least {least}"
        return None if len(found) >= least else f"{which} of these methods in experiments: {', '.join(names)}"

    return missing


def headline_with_grpo(study: Study) -> str | None:
    """Requires GRPO and another method in the experiment 'headline'."""
    names = [arm.name for arm in arms_of(study.experiments["headline"], study)]
    return None if "grpo" in names and len(names) > 1 else "grpo and another method in the experiment 'headline'"


def estimators(study: Study) -> str | None:
    """Requires measurements of estimators."""
    return None if study.estimators else "measurements of estimators; set `estimators: {methods: […], reference: …}`"


def rounds(study: Study) -> str | None:
    """Requires measurements of rounds, of two methods or more."""
    if study.rounds and len(study.rounds.methods) > 1:
        return None
    return "measurements of rounds; set `rounds: {methods: […], reference: …}` with two methods or more"


def free_ratio(study: Study) -> str | None:
    """Requires an estimator with a ratio and without a clip."""
    methods = resolved(study, study.estimators.methods if study.estimators else ())
    if any(m.clip.name == "none" and m.ratio.name != "none" for m in methods.values()):
        return None
    return "a method with a ratio and `clip: null` in `estimators.methods`"


def several_samples(study: Study) -> str | None:
    """Requires a benchmark with several responses per problem."""
    if any(sampling_of(study, b).n > 1 for b in study.evaluation.benchmarks):
        return None
    return "a benchmark with several responses per problem; set `sampling: {n: 8, temperature: 1.0}`"


def block_sweep(parameter: str, section: Literal["estimators", "rounds"]) -> Requirement:
    """Requires methods whose block ratios differ only in this parameter: measured in ``section``, or evaluated arms."""

    def missing(study: Study) -> str | None:
        measured = getattr(study, section)
        if measured and len(block_methods(study, measured.methods, parameter)) > 1:
            return None
        if len(block_arms(study, parameter)) > 1:
            return None
        return f"two methods that differ in block.{parameter} alone, in `{section}.methods` or evaluated"

    return missing


def block_methods(study: Study, names: Sequence[str], parameter: str) -> dict[float, str]:
    """Parameter value → method, for those whose other block parameters are the defaults of MPO, and else the same."""
    default = Block().settings
    groups: dict[str, dict[float, str]] = {}
    for name, found in resolved(study, names).items():
        if isinstance(found.ratio, Block):
            settings = found.ratio.settings
            if all(settings[key] == value for key, value in default.items() if key != parameter):
                rest = {k: v for k, v in found.data().items() if k not in ("ratio", *NOT_COMPARED)}
                groups.setdefault(str(rest), {}).setdefault(float(settings[parameter]), name)
    return dict(sorted(max(groups.values(), key=len, default={}).items()))


def block_arms(study: Study, parameter: str) -> dict[float, str]:
    """Parameter value → arm, for evaluated arms whose other block parameters are the defaults of MPO."""
    matrix = run_matrix(study)
    found: dict[float, str] = {}
    for name in dict.fromkeys(run.arm for run in matrix.evaluated):
        arm: Arm = matrix.arms[name]
        ratio = arm.method(study).ratio
        if isinstance(ratio, Block) and not arm.settings and arm.method_name.startswith("mpo"):
            settings, default = ratio.settings, Block().settings
            if all(settings[key] == value for key, value in default.items() if key != parameter):
                found[float(settings[parameter])] = arm.name
    return dict(sorted(found.items()))


def map_of_regimes(study: Study) -> str | None:
    """Requires an experiment with a reference and two keys with several values."""
    if any(e.reference is not None and len(e.vary) == 2 for e in study.experiments.values()):
        return None
    return "an experiment with a `reference` and two keys under `vary`, such as `ahead` and `learning_rate`"


def reference(study: Study) -> str | None:
    """Requires an experiment with a reference."""
    found = any(e.reference is not None for e in study.experiments.values())
    return None if found else "an experiment with a `reference`"


HEADLINE = experiment("headline")
REQUIREMENTS: dict[str, tuple[Requirement, ...]] = {
    "benchmarks": (HEADLINE,),
    "dynamics": (HEADLINE,),
    "clip_ratio": (HEADLINE,),
    "entropy_regularisation": (arms(ENTROPY_ARMS, 2),),
    "importance_sampling": (arms(RATIO_ARMS, 2),),
    "convergence": (HEADLINE, headline_with_grpo),
    "block_size": (block_sweep("size", "rounds"),),
    "future_weight": (block_sweep("future_weight", "estimators"),),
    "ratio_variance": (estimators, free_ratio),
    "pass_at_k": (several_samples,),
    "regimes": (reference,),
    "ranges": (experiment("ranges"),),
    "estimators": (estimators,),
    "rounds": (rounds,),
    "verdicts": (),
    "phase": (map_of_regimes,),
}
