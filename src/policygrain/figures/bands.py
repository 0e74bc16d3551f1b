"""Accuracy by clip band, a panel per ratio: whether a ratio or its band decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..errors import UserError
from ..results.reader import StudyResults
from ..study.runs import arms_of
from .alike import GRAINS, band, band_text, resolved, same_but
from .forest import SHADE, line
from .measured import area, round_gain, round_updates
from .style import ABOVE, COLUMN, legend, updates_look, updates_text

Ends = tuple[float, float] | None
# Label of a ratio → number of updates → clip band → one number per seed or start model
Points = dict[str, dict[int, dict[Ends, NDArray[np.float64]]]]
EXPERIMENT = "bands"
MOST_LINES = 3
COLUMNS = 2


def draw(results: StudyResults) -> Figure:
    """A line per number of updates, with 95% intervals; a vertical line marks the band that the study chose."""
    whole_runs = EXPERIMENT in results.study.experiments
    points = _of_runs(results) if whole_runs else _of_rounds(results)
    if not points:
        raise UserError("bands: no two methods of `rounds.methods` differ in the clip band alone.")
    columns = min(COLUMNS, len(points))
    rows = -(-len(points) // columns)
    figure = Figure(figsize=(max(COLUMN, 2.2 * columns + 0.5), 1.9 * rows + 0.7))
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    chosen = _chosen(results)
    for axes, (ratio, lines) in zip(panels, points.items(), strict=False):
        _panel(axes, lines, chosen.get(ratio, ()), whole_runs)
        axes.set_title(f"{ratio} ratio")
    for axes in panels[len(points) :]:
        axes.remove()
    figure.supylabel("mean accuracy during training (%)" if whole_runs else "gain of one round (points)", fontsize=8)
    figure.supxlabel("clip band: width below/above 1", fontsize=8)
    legend(figure, loc=ABOVE)
    return figure


def _of_runs(results: StudyResults) -> Points:
    """Area under the learning curve of the arms of the experiment."""
    points: Points = {}
    for arm in arms_of(results.study.experiments[EXPERIMENT], results.study):
        method, updates = arm.method(results.study), arm.training(results.study).updates_per_batch
        ends = points.setdefault(method.ratio.label, {}).setdefault(updates, {})
        ends[band(method)] = area(results, arm.name).to_numpy()
    return points


def _of_rounds(results: StudyResults) -> Points:
    """Gain of one round, of methods that differ in the band alone, after the first, a middle and the last update."""
    every = round_updates(results)
    shown = every if len(every) <= MOST_LINES else [every[0], every[len(every) // 2], every[-1]]
    points: Points = {}
    for group in same_but("clip", resolved(results.study, list(dict.fromkeys(results.rounds["method"])))):
        for name, method in group.items():
            for updates in shown:
                ends = points.setdefault(method.ratio.label, {}).setdefault(updates, {})
                ends[band(method)] = round_gain(results, name, updates).to_numpy()
    return points


def _chosen(results: StudyResults) -> dict[str, tuple[Ends, ...]]:
    """Label of a ratio → the band of the study's method that is named after it."""
    there = resolved(results.study, [name for name in GRAINS if name in results.study.methods])
    return {method.ratio.label: (band(method),) for method in there.values()}


def _panel(axes: Axes, lines: dict[int, dict[Ends, NDArray[np.float64]]], chosen: tuple[Ends, ...], runs: bool) -> None:
    order: Callable[[Ends], tuple[float, float]] = lambda ends: ends or (np.inf, np.inf)  # noqa: E731
    bands = sorted({ends for values in lines.values() for ends in values}, key=order)
    for place, ends in enumerate(bands):
        if ends in chosen:
            axes.axvline(place, color=SHADE, linewidth=5, alpha=0.3, zorder=0, label="chosen band")
    for i, (updates, values) in enumerate(sorted(lines.items())):
        there = [place for place, ends in enumerate(bands) if ends in values]
        text = f"{updates_text(updates)}{' per batch' if runs else ''}"
        shifted = np.array(there, dtype=float) + 0.09 * (i - (len(lines) - 1) / 2)
        line(axes, shifted, [values[bands[place]] for place in there], {**updates_look(i, len(lines)), "label": text})
    texts = [band_text(ends).replace("/", "/\n") for ends in bands]
    axes.set_xticks(range(len(bands)), texts)
    axes.set_xlim(-0.5, len(bands) - 0.5)
