"""The runs and settings that each figure needs, checked before training starts."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError
from ..methods.parts import Block
from ..study import Study
from ..study.runs import Arm, arms_of, run_matrix
from ..tasks.registry import sampling_of

GRAINS = ("token", "block", "sequence", "prefix")
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


def probe(study: Study) -> str | None:
    """Requires a probe."""
    return None if study.probe else "the probe; set `probe: {prompts: 24}`"


def several_samples(study: Study) -> str | None:
    """Requires a benchmark with several responses per problem."""
    if any(sampling_of(study, b).n > 1 for b in study.evaluation.benchmarks):
        return None
    return "a benchmark with several responses per problem; set `sampling: {n: 8, temperature: 1.0}`"


def block_sweep(parameter: str) -> Requirement:
    """Requires two evaluated arms whose block ratios differ only in this parameter."""

    def missing(study: Study) -> str | None:
        return (
            None if len(block_arms(study, parameter)) > 1 else f"two evaluated methods that differ in block.{parameter}"
        )

    return missing


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


HEADLINE = experiment("headline")
REQUIREMENTS: dict[str, tuple[Requirement, ...]] = {
    "benchmarks": (HEADLINE,),
    "dynamics": (HEADLINE,),
    "clip_ratio": (HEADLINE,),
    "entropy_regularisation": (arms(ENTROPY_ARMS, 2),),
    "importance_sampling": (arms(RATIO_ARMS, 2),),
    "convergence": (HEADLINE, headline_with_grpo),
    "block_size": (block_sweep("size"),),
    "future_weight": (block_sweep("future_weight"),),
    "ratio_variance": (probe,),
    "pass_at_k": (several_samples,),
    "stress": (experiment("stress"),),
    "grain": (arms(GRAINS, len(GRAINS)), probe),
}
