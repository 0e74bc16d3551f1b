"""All figures and tables: title in reports, requirements, and the function that makes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, did_you_mean
from ..files import atomic_text
from . import TABLES, contents

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..results.reader import StudyResults
    from ..study import Study


class Entry(NamedTuple):
    """A figure."""

    title: str
    function: str  # MODULE.FUNCTION in this package, imported when the figure is drawn
    needs: str = ""  # what a study must have
    has: Callable[[Study], object] = bool  # whether a study has that


HEADLINE = ("an experiment named 'headline'", contents.headline)
ESTIMATORS = "measurements of estimators; set `estimators: {methods: […], reference: …}`"
ROUNDS = "measurements of rounds; set `rounds: {methods: […], reference: …}` with two methods or more"
SWEEP = "two methods that differ in block.{0} alone, in `{1}.methods` or evaluated"
ARMS = "at least 2 of these methods in experiments: {}"
FIGURES: dict[str, Entry] = {
    "benchmarks": Entry(
        "Accuracy of the initial model and the headline methods, by benchmark and on average (after TEPO's figure 1)",
        "intervals.benchmarks",
        *HEADLINE,
    ),
    "dynamics": Entry(
        "Accuracy, gradient norm, entropy and response length during training (after TEPO's figure 3)",
        "lines.dynamics",
        *HEADLINE,
    ),
    "clip_ratio": Entry(
        "Clip fraction by step, below and above the range (after TEPO's figure 2)", "lines.clip_ratio", *HEADLINE
    ),
    "entropy_regularisation": Entry(
        "Entropy and accuracy of TEPO, with its penalty, an entropy bonus or KL on all tokens (after TEPO's figure 4)",
        "lines.entropy_regularisation",
        ARMS.format(", ".join(contents.ENTROPY_ARMS)),
        contents.entropy_arms,
    ),
    "importance_sampling": Entry(
        "Ratios of every grain with the same sparse reward, and training without a ratio (after TEPO's figure 5)",
        "lines.importance_sampling",
        ARMS.format(", ".join(contents.RATIO_ARMS)),
        contents.ratio_arms,
    ),
    "convergence": Entry(
        "The cost of each method to reach the final accuracy of GRPO, relative to GRPO",
        "rows.convergence",
        "grpo and another method in the experiment 'headline'",
        contents.beside_grpo,
    ),
    "block_size": Entry(
        "Block size K (after MPO): one round by each size, or the accuracy of final models",
        "intervals.block_size",
        SWEEP.format("size", "rounds"),
        lambda study: contents.block_sweep(study, "size", "rounds")[0],
    ),
    "future_weight": Entry(
        "The weight φ of future tokens (after MPO): tokens clipped, and what an update or a final model is worth",
        "intervals.future_weight",
        SWEEP.format("future_weight", "estimators"),
        lambda study: contents.block_sweep(study, "future_weight", "estimators")[0],
    ),
    "ratio_variance": Entry(
        "Variance of every ratio on the same rollouts, by the number of optimizer steps since then (after MPO)",
        "intervals.ratio_variance",
        "a method with a ratio and `clip: null` in `estimators.methods`",
        lambda study: study.estimators and contents.without_clip(study, study.estimators.methods),
    ),
    "pass_at_k": Entry(
        "pass@k of the initial model and the headline methods, by the unbiased estimator",
        "lines.pass_at_k",
        "a benchmark with several responses per problem; set `sampling: {n: 8, temperature: 1.0}`",
        contents.sampled_benchmarks,
    ),
    "regimes": Entry(
        "Each method minus the reference, a panel per regime",
        "rows.regimes",
        "an experiment with a `reference`",
        contents.references,
    ),
    "ranges": Entry(
        "Accuracy by clip range, a panel per ratio and a line per regime",
        "intervals.ranges",
        "an experiment named 'ranges'",
        lambda study: "ranges" in study.experiments,
    ),
    "estimators": Entry(
        "Gradient estimators on the same rollouts against the true gradient, at several distances",
        "rows.estimators",
        ESTIMATORS,
        lambda study: study.estimators,
    ),
    "rounds": Entry(
        "One round by each method from the same rollouts: paired differences after the last update",
        "rows.rounds",
        ROUNDS,
        lambda study: study.rounds and len(study.rounds.methods) > 1,
    ),
    "verdicts": Entry(
        "All comparisons of the claims: effects in units of their uncertainty, and the verdicts", "rows.verdicts"
    ),
    "phase": Entry(
        "A map of regimes: each method minus the reference, over two training settings; a panel per method",
        "maps.phase",
        "an experiment with a `reference` and two keys under `vary`, such as `ahead` and `learning_rate`",
        contents.map_of_regimes,
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
    """A figure from the records of a study. UserError if the study cannot have it."""
    _check(name, results.study)
    drawn: Figure = _function(FIGURES[name].function)(results)
    return drawn


def table(name: str, results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A table from the records of a study: its numbers, and Markdown."""
    made: tuple[pd.DataFrame, str] = _function(TABLES[name])(results)
    return made


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(".")
    implementation: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __package__), function)
    return implementation


def draw(name: str, results: StudyResults, out: Path | None = None) -> None:
    """Draw figure ``name`` to ``out``.pdf, .svg and .png, or write table ``name`` to ``out``.csv and .md.

    By default, ``out`` is its place in the results of the study.
    """
    if name in TABLES:
        frame, markdown = table(name, results)
        out = out or results.folder.table(name)
        atomic_text(out.with_name(out.name + ".csv"), frame.to_csv(index=False))
        atomic_text(out.with_name(out.name + ".md"), markdown)
        return
    if name not in FIGURES:
        raise UserError(f"there is no figure or table {name!r}.{did_you_mean(name, (*FIGURES, *TABLES))}")
    from .style import save

    save(figure(name, results), out or results.folder.figure(name))
