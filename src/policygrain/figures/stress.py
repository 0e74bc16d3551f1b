"""Accuracy by updates per batch: stability of each ratio in off-policy training, with and without clip."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from ..errors import UserError
from ..results.reader import StudyResults
from ..study.runs import Arm, arms_of
from .style import PAGE, label, look

# (ratio, whether it is clipped) → updates per batch → accuracy of each seed
Points = dict[tuple[str, bool], dict[int, NDArray[np.float64]]]


def draw(results: StudyResults) -> Figure:
    """Panels with and without clip: equal samples above, equal optimizer steps below. A line per ratio."""
    experiment = results.study.experiments.get("stress")
    if experiment is None:
        raise UserError("stress: the study has no experiment of this name (methods × vary: {updates_per_batch: […]}).")
    training = results.study.training
    same_updates = training.steps * training.updates_per_batch
    same_samples: Points = {}
    matched: Points = {}
    for arm in arms_of(experiment, results.study):
        method, updates = arm.method(results.study), arm.training(results.study).updates_per_batch
        key = method.ratio.name, method.clip.name != "none"
        same_samples.setdefault(key, {})[updates] = results.final_validation(arm.name)
        if (accuracy := _after(results, arm, same_updates)) is not None:
            matched.setdefault(key, {})[updates] = accuracy
    ratios = list(dict.fromkeys(ratio for ratio, _ in same_samples))
    ticks = sorted({updates for points in same_samples.values() for updates in points})
    figure = Figure(figsize=(PAGE * 0.8, 4.2))
    panels = figure.subplots(2, 2, sharey="row", sharex=True)
    titles = (
        f"after {training.steps} batches of samples\nvalidation accuracy (%)",
        f"after {same_updates} optimizer steps\naccuracy of samples (%)",
    )
    for row, points, title in zip(panels, (same_samples, matched), titles, strict=True):
        _row(row, points, ratios, ticks, title)
    for axes, title in zip(panels[0], ("with clip", "without clip"), strict=True):
        axes.set_title(title)
    for axes in panels[1]:
        axes.set_xlabel("updates per batch")
    handles = [Line2D([], [], markersize=4, **look(i)) for i in range(len(ratios))]
    names = [f"{label(r)} ratio" if r != "none" else "no ratio (REINFORCE)" for r in ratios]
    figure.legend(handles, names, loc="outside lower center", ncols=len(ratios))
    return figure


def _after(results: StudyResults, arm: Arm, updates: int) -> NDArray[np.float64] | None:
    """Accuracy of samples in the last third of the first ``updates`` optimizer steps [seeds]; None if it made fewer."""
    rows = results.steps[(results.steps["arm"] == arm.name) & results.steps["sampled_accuracy"].notna()]
    per_batch = arm.training(results.study).updates_per_batch
    if rows["total_updates"].max() < updates:
        return None
    # The row of a step counts the updates that follow its sampling.
    before = rows["total_updates"] - per_batch
    rows = rows[(before > updates * 2 / 3 - per_batch) & (before <= updates)]
    return rows.groupby("seed")["sampled_accuracy"].mean().to_numpy(dtype=float)


def _row(panels: NDArray[np.object_], points: Points, ratios: list[str], ticks: list[int], title: str) -> None:
    for axes, clipped in zip(panels, (True, False), strict=True):
        for i, ratio in enumerate(ratios):
            if found := points.get((ratio, clipped)):
                _line(axes, found, i)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.margins(x=0.1)
    panels[0].set_ylim(0, None)  # for both panels, after both are drawn: they share the axis
    panels[0].set_ylabel(title)


def _line(axes: Axes, points: dict[int, NDArray[np.float64]], index: int) -> None:
    """Mean and range over seeds. With two or three seeds, a 95% interval would be too wide to be useful."""
    updates = sorted(points)
    values = [points[u] * 100 for u in updates]
    means = np.array([v.mean() for v in values])
    ranges = np.array([[m - v.min(), v.max() - m] for m, v in zip(means, values, strict=True)]).T
    # Shifted horizontally so that the ranges of several ratios do not overlap.
    x = np.array(updates) * 2 ** (0.07 * (index - 2))
    axes.errorbar(x, means, yerr=ranges, markersize=4, linewidth=1.1, elinewidth=0.7, capsize=1.5, **look(index))
