"""A map of regimes: each method minus the reference, over two training settings; a panel per method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from ..analysis import measures
from ..analysis.contrasts import contrasts
from ..results.reader import StudyResults
from ..study.runs import Arm
from .style import FULL_PAGE, labels

REACH = 12.0  # points at which the colours end
KEYS = {
    "ahead": "age of rollouts (optimizer steps)",
    "learning_rate": "learning rate",
    "sampler_bits": "bits of the sampler's weights",
}


def draw(results: StudyResults) -> Figure:
    """A panel with the reference's mean accuracy during training, then one per method with its differences from it."""
    label = labels(results.study)
    name = next(n for n, e in results.study.experiments.items() if e.reference is not None and len(e.vary) == 2)
    experiment = results.study.experiments[name]
    found = [
        c
        for c in contrasts(results)
        if c.pair.experiment == name and c.pair.reference.method_name == experiment.reference != c.pair.arm.method_name
    ]
    (x_key, columns), (y_key, rows) = experiment.vary.items()
    by_cell = {(c.pair.arm.method_name, *_cell(results, c.pair.arm, x_key, y_key)): c for c in found}
    methods = [m for m in experiment.methods if m != experiment.reference]
    across = min(4, len(methods) + 1)
    down = -(-(len(methods) + 1) // across)
    figure = Figure(figsize=(FULL_PAGE, 0.7 + 1.75 * down))
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat
    first = next(panels)
    _reference(first, results, str(experiment.reference), x_key, y_key, columns, rows)
    shown = None
    for method, axes in zip(methods, panels, strict=False):
        drawn = [[by_cell[method, x, y] for x in columns] for y in rows]
        shown = panel(axes, [[Shown(c.area.mean, c.area.low, c.area.high, c.decided) for c in r] for r in drawn], REACH)
        axes.set_title(label(method))
    for axes in panels:
        axes.set_axis_off()
    for axes in figure.axes:
        axes.grid(visible=False)
        axes.set_xticks(range(len(columns)), [f"{x:g}" if isinstance(x, float) else str(x) for x in columns])
        axes.set_yticks(range(len(rows)), [f"{y:g}" if isinstance(y, float) else str(y) for y in rows])
        axes.tick_params(length=0)
    figure.supxlabel(KEYS.get(x_key, x_key.replace("_", " ")), fontsize=8)
    figure.supylabel(KEYS.get(y_key, y_key.replace("_", " ")), fontsize=8)
    if shown is not None:
        bar = figure.colorbar(shown, ax=figure.axes, location="right", shrink=0.8, aspect=30, extend="both")
        bar.set_label(f"area under the curve minus {label(str(experiment.reference))} (points)", fontsize=7.5)
    return figure


def _cell(results: StudyResults, arm: Arm, *keys: str) -> tuple[object, ...]:
    training = arm.training(results.study)
    return tuple(getattr(training, key) for key in keys)


def _reference(
    axes: Axes,
    results: StudyResults,
    name: str,
    x_key: str,
    y_key: str,
    columns: list[float],
    rows: list[float],
) -> None:
    """Mean accuracy during training of the reference, in percent."""
    study = results.study
    cells = np.empty((len(rows), len(columns)))
    for i, y in enumerate(rows):
        for j, x in enumerate(columns):
            settings = tuple((k, v) for k, v in ((x_key, x), (y_key, y)) if getattr(study.training, k) != v)
            cells[i, j] = measures.area(results, Arm(name, settings).name).mean()
    grey(axes, cells.tolist())
    axes.set_title(f"{labels(study)(name)}: mean accuracy")


class Shown(NamedTuple):
    """A difference in points with its interval, and whether it is shown to differ from 0."""

    mean: float
    low: float
    high: float
    decided: bool


def panel(axes: Axes, cells: Sequence[Sequence[Shown]], reach: float, digits: int = 1) -> AxesImage:
    """Differences with half of their intervals; in bold where the two are shown to differ. Colours end at ``reach``."""
    for i, row in enumerate(cells):
        for j, c in enumerate(row):
            text = f"{c.mean:+.{digits}f}\n±{(c.high - c.low) / 2:.{digits}f}"
            axes.text(
                j, i, text, ha="center", va="center", fontsize=6.5, linespacing=1.0,
                color="white" if abs(c.mean) > 0.75 * reach else "black",
                fontweight="bold" if c.decided else "normal",
            )  # fmt: skip
    norm = TwoSlopeNorm(0.0, -reach, reach)
    means = [[c.mean for c in row] for row in cells]
    return axes.imshow(means, cmap="PuOr", norm=norm, aspect="auto", origin="lower")


def grey(axes: Axes, percent: Sequence[Sequence[float]]) -> None:
    """The reference's own values, in percent."""
    for i, row in enumerate(percent):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:.0f}%", ha="center", va="center", fontsize=7)
    axes.imshow(percent, cmap="Greys", vmin=0, vmax=2.2 * np.max(percent), aspect="auto", origin="lower")
