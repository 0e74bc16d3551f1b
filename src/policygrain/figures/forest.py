"""Rows of differences with their intervals, and a mark for each seed or start model; used by several figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ..analysis.statistics import Interval, over_seeds
from .style import Look

SHADE = "#999999"
PLAIN: Look = {"color": "#333333", "marker": "o", "linestyle": "-"}  # of rows that their names tell apart


def shade(axes: Axes, margin: float, vertical: bool = False) -> None:
    """A line at 0 and a band of ± ``margin``, in which a difference does not matter."""
    line, span = (axes.axvline, axes.axvspan) if vertical else (axes.axhline, axes.axhspan)
    span(-margin, margin, color=SHADE, alpha=0.16, linewidth=0, zorder=0, label="within the margin")
    line(0, color="#000000", linewidth=0.7, zorder=1)


def row(axes: Axes, y: float, values: Sequence[float] | NDArray[np.float64], look: Look = PLAIN) -> None:
    """The mean of ``values`` with its 95% interval at height ``y``, and a small mark for each of them beneath it."""
    found = over_seeds(np.asarray(values, dtype=float))
    axes.plot(
        values,
        np.full(len(values), y + 0.22),
        "|",
        color=look["color"],
        markersize=4.5,
        alpha=0.55,
        markeredgewidth=0.8,
    )
    axes.plot([found.low, found.high], [y, y], color=look["color"], linewidth=1.3, solid_capstyle="butt")
    axes.plot([found.mean], [y], markersize=4.5, **{**look, "linestyle": ""})


def line(axes: Axes, x: NDArray[np.float64], values: Sequence[NDArray[np.float64]], style: dict[str, Any]) -> None:
    """A line of means with 95% intervals; ``values``: at each position, one number per seed or start model."""
    found = np.array([over_seeds(v) for v in values])
    errors = np.array([found[:, 0] - found[:, 1], found[:, 2] - found[:, 0]]).clip(min=0)
    axes.errorbar(x, found[:, 0], yerr=errors, markersize=3.8, linewidth=1.1, elinewidth=0.9, capsize=1.6, **style)


def clipped(axes: Axes, y: float, interval: Interval, limits: tuple[float, float], look: Look) -> None:
    """An interval, of which the part within ``limits`` is drawn; an arrow shows where it goes on."""
    low, high = (float(np.clip(end, *limits)) for end in interval[1:])
    axes.plot([low, high], [y, y], color=look["color"], linewidth=1.3, solid_capstyle="butt")
    for end, there, arrow in ((interval.low, limits[0], "<"), (interval.high, limits[1], ">")):
        if (end < there) if arrow == "<" else (end > there):
            axes.plot([there], [y], arrow, color=look["color"], markersize=4, clip_on=False)
    if limits[0] <= interval.mean <= limits[1]:
        axes.plot([interval.mean], [y], markersize=4.5, **{**look, "linestyle": ""})
