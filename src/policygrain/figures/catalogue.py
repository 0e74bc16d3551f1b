"""All figures and tables: title in reports, requirements, and the function that makes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data.sets import sampling_of
from ..errors import UserError, did_you_mean
from ..files import atomic_text
from ..objective import Method, method
from ..objective.method import TEXTS
from ..objective.ratio import Block
from ..study import Study
from ..study.runs import arms_of, run_matrix
from . import TABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..results import StudyResults


# ---- the arms, methods and benchmarks of a study in each figure; empty where the study has none ----------------------

# TEPO and its variants with other regularisers of entropy; methods with each ratio, and one without a ratio.
ENTROPY_ARMS = ("tepo", "tepo_v1", "tepo_max_entropy", "tepo_full_kl")
RATIO_ARMS = ("token", "block", "sequence", "prefix", "tepo_v1", "prefix_is", "reinforce")


def headline(study: Study) -> list[str]:
    """The headline's arms with the study's own training settings; if there are none, all arms of the headline."""
    experiment = study.experiments.get("headline")
    arms = [arm.name for arm in arms_of(experiment, study)] if experiment else []
    return [arm for arm in arms if "+" not in arm] or arms


def evaluated_headline(study: Study) -> list[str]:
    """The arms of the headline, if their final models are evaluated."""
    return headline(study) if "headline" in study.experiments and study.experiments["headline"].evaluate else []


def beside_grpo(study: Study) -> list[str]:
    """The other arms of a headline with GRPO."""
    arms = headline(study)
    return [arm for arm in arms if arm != "grpo"] if "grpo" in arms else []


def at_least_two(names: Iterable[str], study: Study) -> list[str]:
    """The items of ``names`` that are arms of the study; empty if there are fewer than two."""
    arms = run_matrix(study).arms
    there = [name for name in names if name in arms]
    return there if len(there) > 1 else []


entropy_arms = partial(at_least_two, ENTROPY_ARMS)
ratio_arms = partial(at_least_two, RATIO_ARMS)


def sampled_benchmarks(study: Study) -> list[str]:
    """Benchmarks with several responses per problem."""
    return [b.name for b in study.evaluation.benchmarks if sampling_of(study, b).n > 1]


def block_sweep(parameter: str, study: Study) -> dict[float, str]:
    """Value of a block ratio's ``parameter`` → evaluated arm, for methods that differ in it alone, sampler apart.

    The ratio's other parameters are MPO's defaults. Empty if there are fewer than two values.
    """
    default = Block().settings
    groups: dict[str, dict[float, str]] = {}
    for name in dict.fromkeys(run.arm for run in run_matrix(study).evaluated if "+" not in run.arm):
        chosen: Method = method(name, study.methods)
        settings = chosen.ratio.settings
        if isinstance(chosen.ratio, Block) and settings == default | {parameter: settings[parameter]}:
            rest = {k: v for k, v in chosen.data().items() if k not in ("ratio", "sampler", *TEXTS)}
            groups.setdefault(str(rest), {}).setdefault(float(settings[parameter]), name)
    largest = max(groups.values(), key=len, default={})
    return dict(sorted(largest.items())) if len(largest) > 1 else {}


# ---- the figures -----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A figure."""

    title: str
    module: str  # in this package, imported when the figure is drawn; its function has the figure's name
    needs: str = ""  # the requirement on a study, in words
    has: Callable[[Study], object] = bool  # whether a study meets the requirement


HEADLINE = ("an experiment named 'headline'", headline)
SWEEP = "two evaluated methods that differ in block.{0} alone"
ARMS = "at least 2 of these methods in experiments: {}"
FIGURES: dict[str, Entry] = {
    "benchmarks": Entry(
        "Accuracy of the initial model and the headline methods, by benchmark and on average (after TEPO's figure 1)",
        "intervals",
        "an experiment named 'headline' that is evaluated",
        evaluated_headline,
    ),
    "dynamics": Entry(
        "Accuracy, gradient norm, entropy and response length during training (after TEPO's figure 3)",
        "lines",
        *HEADLINE,
    ),
    "clip_ratio": Entry("Clip fraction by step, below and above the range (after TEPO's figure 2)", "lines", *HEADLINE),
    "entropy_regularisation": Entry(
        "Entropy and accuracy of TEPO, with its penalty, an entropy bonus or KL on all tokens (after TEPO's figure 4)",
        "lines",
        ARMS.format(", ".join(ENTROPY_ARMS)),
        entropy_arms,
    ),
    "importance_sampling": Entry(
        "Importance-sampling levels with the same sparse reward, and training without a ratio (after TEPO's figure 5)",
        "lines",
        ARMS.format(", ".join(RATIO_ARMS)),
        ratio_arms,
    ),
    "convergence": Entry(
        "The cost of each method to reach the final accuracy of GRPO, relative to GRPO",
        "intervals",
        "grpo and another method in the experiment 'headline'",
        beside_grpo,
    ),
    "block_size": Entry(
        "Block size K (after MPO): accuracy of the final models",
        "intervals",
        SWEEP.format("size"),
        partial(block_sweep, "size"),
    ),
    "future_weight": Entry(
        "The weight φ of future tokens (after MPO): tokens clipped, and accuracy of the final models",
        "intervals",
        SWEEP.format("future_weight"),
        partial(block_sweep, "future_weight"),
    ),
    "pass_at_k": Entry(
        "pass@k of the initial model and the headline methods, by the unbiased estimator",
        "lines",
        "a benchmark with several responses per problem; set `sampling: {n: 8, temperature: 1.0}`",
        sampled_benchmarks,
    ),
}


def check_figures(study: Study) -> None:
    """UserError for the first figure that cannot be drawn from the runs of the study."""
    for name in study.figures:
        _check(name, study)


def _check(name: str, study: Study) -> None:
    if not FIGURES[name].has(study):
        raise UserError(f"figures: {name!r} needs {FIGURES[name].needs}.")


def figure(name: str, results: StudyResults) -> Figure:
    """A figure from the records of a study. UserError if the study does not meet the figure's requirement."""
    _check(name, results.study)
    drawn: Figure = _function(FIGURES[name].module, name)(results)
    return drawn


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __package__), name)
    return function


def draw(name: str, results: StudyResults, out: Path | None = None) -> None:
    """Draw figure ``name`` to ``out``.pdf, .svg and .png, or write table ``name`` to ``out``.csv and .md.

    By default, ``out`` is its place in the results of the study.
    """
    if name in TABLES:
        frame, markdown = _function("tables", name)(results)
        out = out or results.folder.table(name)
        atomic_text(out.with_name(out.name + ".csv"), frame.to_csv(index=False))
        atomic_text(out.with_name(out.name + ".md"), markdown)
        return
    if name not in FIGURES:
        raise UserError(f"there is no figure or table {name!r}.{did_you_mean(name, (*FIGURES, *TABLES))}")
    from .style import save

    save(figure(name, results), out or results.folder.figure(name))
