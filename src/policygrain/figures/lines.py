"""Panels with the curves of several arms by training step, used by several figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis.statistics import over_seeds
from ..errors import UserError
from ..results.reader import StudyResults
from .style import WIDE, Look, legend, looks, name_of

WIDE_RANGE = 30  # largest over smallest value from which an axis is logarithmic


class Panel(NamedTuple):
    """A metric of training steps, none of which is below 0, and how it is drawn."""

    metric: str
    title: str
    scale: float = 1
    smooth: int = 3  # steps that each seed is averaged over
    most: float = np.inf  # its largest possible value, scaled
    geometric: bool = False  # means of logarithms: a single run can be larger by orders of magnitude


GRADIENT_NORM = Panel("gradient_norm", "gradient norm before clipping", geometric=True)


def over_steps(
    results: StudyResults, figure: str, arms: Sequence[str], panels: Sequence[Panel], width: float
) -> Figure:
    """A panel per metric with a curve per trained arm: means with 95% intervals over seeds.

    UserError if fewer than two of ``arms`` were trained.
    """
    trained = [arm for arm in arms if (results.steps["arm"] == arm).any()]
    if len(trained) < 2:
        raise UserError(f"{figure}: at least two of these must be trained: {', '.join(arms)}; see `experiments`.")
    result = Figure(figsize=(WIDE * width, 2.2))
    for axes, panel in zip(result.subplots(1, len(panels)), panels, strict=True):
        draw_panel(axes, results, trained, panel)
    legend(result)
    return result


def draw_panel(axes: Axes, results: StudyResults, arms: Sequence[str], panel: Panel) -> None:
    """The curves of one metric, on a logarithmic axis where its geometric means are far apart."""
    found = looks(results.study)
    for arm in arms:
        curve(axes, results, arm, panel, found[arm])
    axes.set_title(panel.title)
    axes.set_xlabel("training step")
    beside = [one for one in axes.get_shared_y_axes().get_siblings(axes) if one.lines]
    limits = np.array([one.dataLim.intervaly for one in beside] or [[0, 1]])
    least, most = limits.min(), limits.max()
    if panel.geometric and most > WIDE_RANGE * least:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.05 * most or 1)


def curve(axes: Axes, results: StudyResults, arm: str, panel: Panel, look: Look) -> None:
    """The mean over seeds by step, with a band of 95% that is cut at the smallest and largest possible value."""
    steps = results.steps
    if panel.metric not in steps:  # no run of the study has made an optimizer step
        return
    rows = steps[(steps["arm"] == arm) & steps[panel.metric].notna()].sort_values("step")
    if rows.empty:  # dynamic sampling may have dropped every group of every step
        return
    table = panel.scale * rows.pivot(index="step", columns="seed", values=panel.metric)
    if panel.geometric:
        table = table.where(table > 0).map(np.log)  # a norm of 0 has no logarithm
    table = table.rolling(panel.smooth, min_periods=1, center=True).mean().dropna(how="all")
    if table.empty:  # all norms are 0
        return
    intervals = np.array([over_seeds(v[~np.isnan(v)]) for v in table.to_numpy(dtype=float)])
    intervals = (np.exp(intervals) if panel.geometric else intervals).clip(0, panel.most)
    every = max(1, len(table) // 8)
    axes.plot(
        table.index, intervals[:, 0], markevery=every, markersize=3, linewidth=1.2, label=name_of(results, arm), **look
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if table.shape[1] > 1:
        axes.fill_between(table.index, intervals[:, 1], intervals[:, 2], color=look["color"], alpha=0.13, linewidth=0)
