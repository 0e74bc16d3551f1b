"""Gradient estimators on the same rollouts against the true gradient, at several distances."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from ..analysis.statistics import over_seeds
from ..results.reader import StudyResults
from .forest import clipped
from .measured import distances, estimated
from .style import COLOURS, MARKERS, WIDE, label

COLUMNS = {
    "bias_cosine": "mean direction:\ncosine with\nthe true gradient",
    "snr": "signal-to-\nnoise ratio\nof one batch",
    "cosine": "one batch:\nmean\ncosine",
    "clip_fraction": "tokens\nclipped (%)",
}
LEAST = {"snr": 1e-4, "clip_fraction": 0.01}  # logarithmic axes; what is smaller is drawn at their edge


def draw(results: StudyResults) -> Figure:
    """A row per estimator, a column per metric: means over start models with 95% intervals, and each start model."""
    names, steps = list(dict.fromkeys(results.estimators["estimator"])), distances(results)
    figure = Figure(figsize=(WIDE * 1.1, 1.4 + 0.27 * len(names)))
    panels = figure.subplots(1, len(COLUMNS), sharey=True)
    for axes, (metric, title) in zip(panels, COLUMNS.items(), strict=True):
        scale = 100 if metric == "clip_fraction" else 1
        for i, updates in enumerate(steps):
            values = [scale * estimated(results, name, updates, metric).to_numpy(dtype=float) for name in names]
            free = [metric == "clip_fraction" and not v.any() for v in values]  # they have no clip
            kept = {place: v for place, v in enumerate(values) if not free[place]}
            _column(axes, kept, 0.34 * ((i + 0.5) / len(steps) - 0.5) * 2, i, LEAST.get(metric))
        axes.set_title(title)
    panels[0].axvline(1, color="#000000", linewidth=0.6)
    panels[2].axvline(0, color="#000000", linewidth=0.6)
    panels[0].set_yticks(range(len(names)), [label(name) for name in names])
    for axes in panels:
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(names) - 0.45, -0.55)
    handles = [
        Line2D([], [], color=COLOURS[i], marker=MARKERS[i], markersize=4, linewidth=1.3) for i in range(len(steps))
    ]
    texts = [f"{updates} update{'' if updates == 1 else 's'} after the rollouts" for updates in steps]
    figure.legend(handles, texts, loc="outside lower center", ncols=len(steps))
    return figure


def _column(axes: Axes, rows: dict[int, NDArray[np.float64]], shift: float, index: int, least: float | None) -> None:
    """One metric at one distance; ``least``: the axis is logarithmic, and an interval that leaves it has an arrow."""
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    if least is not None:
        axes.set_xscale("log")
    limits = (-np.inf if least is None else least, np.inf)
    for place, values in rows.items():
        shown = values[values > limits[0]]
        axes.plot(shown, np.full(len(shown), place + shift), "|", color=colour, markersize=4, alpha=0.45)
        clipped(axes, place + shift, over_seeds(values), limits, colour, marker)
