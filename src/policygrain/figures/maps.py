"""Maps of regimes: a panel with the reference's values on a grid, and one per method with its differences from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mode
from typing import NamedTuple

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from ..analysis.statistics import LEVEL, Interval
from ..measurements import MapCell, MapRecord
from .style import FULL_PAGE

KEYS = {
    "off_policy_steps": "age of rollouts (optimizer steps)",
    "learning_rate": "learning rate",
}
ROWS = {"length": "{} tokens", "group": "groups of {}", "learning_rate": "rate {:g}"}


Cell = tuple[Interval, bool]  # a difference in points, and whether it is shown to differ from 0


class Grid(NamedTuple):
    """The rows, from the bottom, and columns of all panels."""

    rows: Sequence[str]
    columns: Sequence[str]
    across: int  # panels beside each other
    height: float  # inches
    reach: float  # points at which the colours end
    digits: int  # after the point
    shrink: float  # length of the colour bar as a share of the figure's height
    unit: str  # text of the colour bar
    lines: Sequence[int] = ()  # rows below which there is a line


def draw(
    grid: Grid, reference: str, percent: Sequence[Sequence[float]], methods: Mapping[str, Sequence[Sequence[Cell]]]
) -> Figure:
    """A panel titled ``reference`` with ``percent`` [rows][columns], and one per method with its differences.

    A cell has the difference and half the width of its interval, in bold if the difference is shown.
    """
    down = -(-(len(methods) + 1) // grid.across)
    figure = Figure(figsize=(FULL_PAGE, grid.height))
    panels = figure.subplots(down, grid.across, squeeze=False, sharex=True, sharey=True).flat
    first, image = next(panels), None
    first.set_title(reference)
    for i, values in enumerate(percent):
        for j, value in enumerate(values):
            first.text(j, i, f"{value:.0f}%", ha="center", va="center", fontsize=7)
    first.imshow(percent, cmap="Greys", vmin=0, vmax=2.2 * np.max(percent), aspect="auto", origin="lower")
    for title, cells in methods.items():
        axes = next(panels)
        axes.set_title(title)
        for i, row in enumerate(cells):
            for j, (c, decided) in enumerate(row):
                text = f"{c.mean:+.{grid.digits}f}\n±{(c.high - c.low) / 2:.{grid.digits}f}"
                axes.text(
                    j, i, text, ha="center", va="center", fontsize=6.5, linespacing=1.0,
                    color="white" if abs(c.mean) > 0.75 * grid.reach else "black",
                    fontweight="bold" if decided else "normal",
                )  # fmt: skip
        norm = TwoSlopeNorm(0.0, -grid.reach, grid.reach)
        means = [[c.mean for c, _ in row] for row in cells]
        image = axes.imshow(means, cmap="PuOr", norm=norm, aspect="auto", origin="lower")
    for axes in panels:
        axes.set_axis_off()
    for axes in figure.axes:
        axes.grid(visible=False)
        axes.set_xticks(range(len(grid.columns)), grid.columns)
        axes.set_yticks(range(len(grid.rows)), grid.rows)
        axes.tick_params(length=0)
        for place in grid.lines:
            axes.axhline(place - 0.5, color="black", linewidth=0.8)
    if image is not None:
        bar = figure.colorbar(image, ax=figure.axes, location="right", shrink=grid.shrink, aspect=30, extend="both")
        bar.set_label(grid.unit, fontsize=7.5)
    return figure


def exact(record: MapRecord) -> Figure:
    """As `phase`, on random policies whose gradient is known: expected reward instead of accuracy."""
    rows = by_row(record)
    cells = [row for *_, row in rows]
    grid = Grid(
        rows=[ROWS[key].format(value) for key, value, _ in rows],
        columns=[str(cell.age) for cell in cells[0]],
        across=3,
        height=9.2,
        reach=2.0,
        digits=2,
        shrink=0.6,
        unit="expected reward, mean over a run, minus no ratio (points)",
        lines=[place for place in range(1, len(rows)) if rows[place][0] != rows[place - 1][0]],
    )
    differences = {}
    for place, m in enumerate(record.cells[0].methods):
        title = m.name + (f", clip {m.clip[0]:g} / {m.clip[1]:g}" if m.clip else "")
        table = [[cell.methods[place] for cell in row] for row in cells]
        differences[title] = [[(Interval(*one.difference), one.p < LEVEL) for one in row] for row in table]
    percent = [[cell.area[0] for cell in row] for row in cells]
    figure = draw(grid, "no ratio: mean expected reward", percent, differences)
    figure.supxlabel("age of rollouts (optimizer steps)", fontsize=8)
    return figure


def by_row(record: MapRecord) -> list[tuple[str, float, list[MapCell]]]:
    """Key and value of what a row varies, and its cells; all else is as in most cells of the record."""
    usual = {key: mode(getattr(cell, key) for cell in record.cells) for key in ROWS}
    rows = []
    for key in ROWS:
        others = usual.items() - {(key, usual[key])}
        cells = [cell for cell in record.cells if all(getattr(cell, other) == value for other, value in others)]
        values = sorted({getattr(cell, key) for cell in cells})
        rows += [(key, value, [cell for cell in cells if getattr(cell, key) == value]) for value in values]
    return rows
