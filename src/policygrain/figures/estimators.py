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
from .style import WIDE, Look, from_zero, labels, legend, updates_look, updates_text

COLUMNS = {
    "bias_cosine": "mean direction:\ncosine with\nthe true gradient",
    "snr": "signal-to-\nnoise ratio\nof one batch",
    "cosine": "one batch:\nmean\ncosine",
    "clip_fraction": "tokens\nclipped (%)",
}
LEAST_SNR = 1e-4  # of a logarithmic axis; an estimate may be below 0, and is drawn at its edge


def draw(results: StudyResults) -> Figure:
    """A row per estimator, a column per metric: means over start models with 95% intervals, and each start model."""
    label = labels(results.study)
    names, steps = list(dict.fromkeys(results.estimators["estimator"])), distances(results)
    figure = Figure(figsize=(WIDE * 1.1, 1.4 + 0.27 * len(names)))
    panels = figure.subplots(1, len(COLUMNS), sharey=True)
    for axes, (metric, title) in zip(panels, COLUMNS.items(), strict=True):
        scale = 100 if metric == "clip_fraction" else 1
        for i, updates in enumerate(steps):
            values = [scale * estimated(results, name, updates, metric).to_numpy(dtype=float) for name in names]
            free = [metric == "clip_fraction" and not v.any() for v in values]  # they have no clip
            kept = {place: v for place, v in enumerate(values) if not free[place]}
            least = LEAST_SNR if metric == "snr" else -np.inf
            _column(axes, kept, 0.34 * ((i + 0.5) / len(steps) - 0.5) * 2, updates_look(i, len(steps)), least)
        axes.set_title(title)
    panels[0].axvline(1, color="#000000", linewidth=0.6)
    panels[2].axvline(0, color="#000000", linewidth=0.6)
    panels[0].set_yticks(range(len(names)), [label(name) for name in names])
    panels[1].set_xscale("log")
    from_zero(panels[3], "x", least=0.1)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(names) - 0.45, -0.55)
    handles = [Line2D([], [], markersize=4, linewidth=1.3, **updates_look(i, len(steps))) for i in range(len(steps))]
    legend(figure, entries=(handles, [f"{updates_text(updates)} after the rollouts" for updates in steps]))
    return figure


def _column(axes: Axes, rows: dict[int, NDArray[np.float64]], shift: float, look: Look, least: float) -> None:
    """One metric at one distance; an interval that goes on below ``least`` has an arrow."""
    for place, values in rows.items():
        shown = values[values > least]
        axes.plot(shown, np.full(len(shown), place + shift), "|", color=look["color"], markersize=4, alpha=0.45)
        clipped(axes, place + shift, over_seeds(values), (least, np.inf), look)
