"""Figures with points and their intervals over a category or a parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..analysis import accuracy, measures
from ..analysis.clip_ranges import EXPERIMENT, candidates
from ..analysis.statistics import Array, Interval, over_seeds
from ..analysis.wording import regime_text
from ..paths import START
from ..results import StudyResults
from . import catalogue
from .labels import name_of, updates_text
from .style import ABOVE, COLUMN, PLAIN, WIDE, beside, legend, looks, named_columns, points, shade_margin, updates_look

BASE = 5.0  # MPO's block size K, the reference of differences
SMALLEST = 1e-12  # distance from 0, or 1, at which values are cut off before logarithms


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


def ratio_variance(results: StudyResults) -> Figure:
    """Two panels: ratios without a clip, a line per distance; means with 95% intervals over initial models."""
    ratios = catalogue.without_clip(results.study, results.estimators["estimator"].unique())
    figure = Figure(figsize=(WIDE * 0.9, 2.9))
    variance, share = figure.subplots(1, 2)
    for axes, metric, interval in (
        (variance, "ratio_variance", over_logs),
        (share, "effective_sample_share", over_logits),
    ):
        steps = sorted(results.estimators["updates"].unique())
        for i, updates in enumerate(steps):
            intervals = [interval(measures.estimated_by_start(results, name, metric, updates)) for name in ratios]
            x = beside(range(len(ratios)), i, len(steps), 0.14)
            style = updates_look(i, len(steps)) | {"linestyle": "", "label": f"after {updates_text(updates)}"}
            points(axes, x, intervals, **style, markersize=4, elinewidth=1, capsize=1.8)
        named_columns(axes, list(ratios.values()), rotation=40, ha="right", rotation_mode="anchor")
    variance.set_yscale("log")
    variance.set_title("variance of the ratio")
    share.set_title("effective sample size\n/ sample size")
    share.set_ylim(0, 1.05)
    legend(figure, loc=ABOVE)
    return figure


def over_logs(values: Array) -> Interval:
    """Geometric mean; Student's interval of the logarithms."""
    return over_seeds(np.log(values.clip(min=SMALLEST))).map(math.exp)


def over_logits(values: Array) -> Interval:
    """The share at the mean of the logits; Student's interval of the logits, so that it stays within 0 and 1."""
    x = values.clip(SMALLEST, 1 - SMALLEST)
    return over_seeds(np.log(x / (1 - x))).map(lambda v: float(1 / (1 + np.exp(-v))))


def block_size(results: StudyResults) -> Figure:
    """By K: reward after a round minus that with K = 5; if rounds do not compare several K, final accuracy."""
    methods, measured = catalogue.block_sweep(results.study, "size", "rounds")
    figure = Figure(figsize=(COLUMN, 2.2))
    axes = figure.subplots()
    axes.set_xlabel("block size K (tokens)")
    places = np.arange(len(methods), dtype=float)
    if not measured:
        _final_accuracy(axes, results, dict(zip(places, methods.values(), strict=True)))
        axes.set_xticks(places, [f"{size:g}" for size in methods])
        return figure
    base = BASE if BASE in methods else next(iter(methods))
    reference = measures.after_round(results, methods[base])
    shade_margin(axes, "y")
    values = [(measures.after_round(results, name) - reference).dropna().to_numpy() for name in methods.values()]
    points(axes, places, [over_seeds(v) for v in values], **PLAIN | {"linestyle": ""})
    for place, of_size in zip(places, values, strict=True):
        axes.plot(np.full(len(of_size), place + 0.12), of_size, "_", color=PLAIN["color"], markersize=5, alpha=0.55)
    axes.set_xticks(places, [f"{size:g}" for size in methods])
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_ylabel(f"points, minus K = {base:g},\nafter {results.rounds['updates'].max()} updates")
    legend(figure, loc=ABOVE)
    return figure


def future_weight(results: StudyResults) -> Figure:
    """Two panels by φ, with one clip range and K = 5; 95% intervals over initial models, or over training seeds."""
    methods, measured = catalogue.block_sweep(results.study, "future_weight", "estimators")
    figure = Figure(figsize=(WIDE * 0.7, 2.4))
    left, right = figure.subplots(1, 2)
    if measured:
        steps = sorted(results.estimators["updates"].unique())
        for i, updates in enumerate(steps):
            style = updates_look(i, len(steps)) | {"label": f"after {updates_text(updates)}"}
            for axes, metric in ((left, "clip_fraction"), (right, "cosine")):
                intervals = [
                    over_seeds(measures.estimated_by_start(results, name, metric, updates)) for name in methods.values()
                ]
                points(axes, np.array(list(methods)) + 0.006 * i, intervals, **style)
        right.set_ylabel("cosine of one batch\nwith the true gradient")
        legend(figure, loc=ABOVE)
    else:
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


def ranges(results: StudyResults) -> Figure:
    """The area under the learning curve in percent, with 95% intervals over training seeds."""
    by_ratio, study = candidates(results), results.study
    keys = study.experiments[EXPERIMENT].vary
    figure = Figure(figsize=(max(COLUMN, 2.2 * len(by_ratio) + 0.5), 2.8))
    panels = figure.subplots(1, len(by_ratio), sharey=True, squeeze=False).flat
    for axes, (ratio, by_range) in zip(panels, by_ratio.items(), strict=True):
        lines: dict[str, dict[int, str]] = {}  # regime → position → arm
        for place, arms in enumerate(by_range.values()):
            for arm in arms:
                training = arm.training(study)
                regime = regime_text(tuple((key, getattr(training, key)) for key in keys))
                lines.setdefault(regime, {})[place] = arm.name
        for i, (regime, names) in enumerate(lines.items()):
            intervals = [over_seeds(measures.by_unit(results, measures.area(results, name))) for name in names.values()]
            points(
                axes, beside(list(names), i, len(lines), 0.09), intervals, **updates_look(i, len(lines)), label=regime
            )
        axes.set_xticks(range(len(by_range)), [f"{low:g}/\n{high:g}" for low, high in by_range])
        axes.set_title(f"{ratio} ratio")
    figure.supylabel("mean accuracy during training (%)", fontsize=8)
    figure.supxlabel("clip range: width below/above 1", fontsize=8)
    legend(figure, loc=ABOVE)
    return figure
