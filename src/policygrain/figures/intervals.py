"""Figures with points and their intervals over a category or a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..analysis import accuracy, measures
from ..analysis.statistics import Interval, over_seeds, ranked
from ..paths import START
from ..results import StudyResults
from . import catalogue
from .labels import labels, name_of
from .style import (
    ABOVE,
    COLUMN,
    PLAIN,
    WIDE,
    beside,
    interval_row,
    legend,
    looks,
    named_columns,
    named_rows,
    points,
    seed_marks,
)


def benchmarks(results: StudyResults) -> Figure:
    """Points per benchmark with 95% intervals over training seeds, of the initial model over initial models."""
    arms = [START, *catalogue.evaluated_headline(results.study)]
    names = [*results.benchmarks, "average"]
    arm_looks = looks(results.study)
    figure = Figure(figsize=(WIDE, 2.7))
    axes = figure.subplots()
    for i, arm in enumerate(arms):
        points(
            axes,
            beside(range(len(names)), i, len(arms), 0.72 / len(arms)),
            [*(_percent(results, arm, b) for b in results.benchmarks), _percent(results, arm, *results.benchmarks)],
            label=name_of(results, arm),
            **{**arm_looks[arm], "linestyle": "", "markersize": 7 if arm == START else 4},
            **{"elinewidth": 1.1, "capsize": 1.5},
        )
    for place in range(1, len(names)):
        axes.axvline(place - 0.5, color="#666666", linewidth=0.8 if place == len(names) - 1 else 0.25)
    named_columns(axes, [n.replace("_", " ") for n in names], rotation=25, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(bottom=0)
    legend(figure, loc=ABOVE)
    return figure


def _percent(results: StudyResults, arm: str, *names: str) -> Interval:
    """Accuracy of an arm in percent, mean over benchmarks, with the interval of the results table."""
    return accuracy([results.scores(arm, b) for b in names]).interval.map(lambda share: 100 * share)


def block_size(results: StudyResults) -> Figure:
    """Accuracy of final models by K, with 95% intervals over training seeds."""
    methods = catalogue.block_sweep("size", results.study)
    figure = Figure(figsize=(COLUMN, 2.2))
    axes = figure.subplots()
    places = range(len(methods))
    _final_accuracy(axes, results, dict(zip(map(float, places), methods.values(), strict=True)))
    axes.set_xticks(places, [f"{size:g}" for size in methods])
    axes.set_xlabel("block size K (tokens)")
    return figure


def future_weight(results: StudyResults) -> Figure:
    """Two panels by φ, with one clip range and K = 5; 95% intervals over training seeds."""
    methods = catalogue.block_sweep("future_weight", results.study)
    figure = Figure(figsize=(WIDE * 0.7, 2.4))
    left, right = figure.subplots(1, 2)
    clipped = [measures.late_clip_fraction(results, arm) for arm in methods.values()]
    intervals = [over_seeds(measures.by_unit(results, values)) for values in clipped]
    _by_parameter(left, list(methods), clipped, intervals)
    _final_accuracy(right, results, methods)
    for axes in (left, right):
        axes.set_xticks(list(methods), [f"{weight:g}" for weight in methods])
    left.set_ylabel("tokens clipped (%)")
    left.set_ylim(bottom=0)
    figure.supxlabel("weight of future tokens φ", fontsize=8)
    return figure


def _final_accuracy(axes: Axes, results: StudyResults, arms: Mapping[float, str]) -> None:
    """The accuracy of final models by position."""
    intervals = [_percent(results, arm, *results.benchmarks) for arm in arms.values()]
    _by_parameter(axes, list(arms), [measures.accuracy(results, arm) for arm in arms.values()], intervals)
    axes.set_ylabel("accuracy (%)")


def _by_parameter(
    axes: Axes, places: Sequence[float], by_seed: Sequence[pd.Series], intervals: Sequence[Interval]
) -> None:
    """Means with 95% intervals by position, and seeds as small marks."""
    points(axes, places, intervals, **PLAIN, markersize=4, elinewidth=0.8, capsize=2)
    for place, values in zip(places, by_seed, strict=True):
        axes.plot(np.full(len(values), place), values, "_", color=PLAIN["color"], markersize=5, alpha=0.6)


COSTS = {"steps": "optimizer\nsteps", "tokens": "generated\ntokens", "seconds": "seconds of\ntraining"}
COST_TICKS = {2.0**k: f"{2**k}" if k >= 0 else {-1: "½", -2: "¼", -3: "⅛"}[k] for k in range(-3, 6)}


def convergence(results: StudyResults) -> Figure:
    """A panel per cost: ratio to GRPO by seed or initial model, median with 95% interval; dashed line: half.

    A run that never reaches the accuracy has an infinite ratio.
    """
    arms = catalogue.beside_grpo(results.study)
    ratios = {
        by: [measures.by_unit(results, measures.reached(results, arm, "grpo", by)) for arm in arms] for by in COSTS
    }
    # As wide as the seeds lie, so that a single wide interval does not hide the others.
    every = np.concatenate([v for values in ratios.values() for v in values])
    low, high = (
        max(-3.0, min(-1.5, every.min() - 0.3)),
        min(5.0, max(1.5, every.max() + 0.3)),
    )  # infinite ratios count as 5
    limits, arm_looks, label = (2**low, 2**high), looks(results.study), labels(results.study)
    ticks = {value: text for value, text in COST_TICKS.items() if limits[0] <= value <= limits[1]}
    figure = Figure(figsize=(WIDE * 0.95, 0.95 + 0.42 * len(arms)))
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (by, title) in zip(panels, COSTS.items(), strict=True):
        axes.axvline(1, color="#000000", linewidth=0.8)
        axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=(0, (3, 2)))
        for place, (arm, values) in enumerate(zip(arms, ratios[by], strict=True)):
            seed_marks(axes, 2 ** np.minimum(values, 60.0), place + 0.24, arm_looks[arm], markersize=5, alpha=0.6)
            interval = ranked(values).interval.map(lambda v: 2.0 ** min(v, 60.0))
            interval_row(axes, place, interval, arm_looks[arm], limits)
        axes.set_xscale("log", base=2)
        axes.set_xlim(*limits)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("ratio to GRPO")
    named_rows(panels[0], [label(arm) for arm in arms], below=0.5)
    return figure
