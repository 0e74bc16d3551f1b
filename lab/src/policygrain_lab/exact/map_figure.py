"""The map as a figure: a panel with the reference's expected reward, and one per method with differences."""

from __future__ import annotations

from statistics import mode

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from policygrain.analysis.statistics import LEVEL
from policygrain.figures.style import PAGE

from .records import MapCell, MapRecord

ROWS = {"length": "{} tokens", "group": "groups of {}", "learning_rate": "rate {:g}"}
ACROSS = 3  # panels beside each other
REACH = 2.0  # points at which the colours end


def draw(record: MapRecord) -> Figure:
    """A cell has the difference and half the width of its interval, in bold if the difference is shown."""
    rows = by_row(record)
    cells, titles = [row for *_, row in rows], [ROWS[key].format(value) for key, value, _ in rows]
    first_cell = record.cells[0]
    figure = Figure(figsize=(PAGE, 9.2))
    down = -(-(len(first_cell.methods) + 1) // ACROSS)
    panels = figure.subplots(down, ACROSS, squeeze=False, sharex=True, sharey=True).flat
    first = next(panels)
    first.set_title("no ratio: mean expected reward")
    percent = [[cell.area[0] for cell in row] for row in cells]
    for (i, j), value in np.ndenumerate(percent):
        first.text(j, i, f"{value:.0f}%", ha="center", va="center", fontsize=7)
    image = first.imshow(percent, cmap="Greys", vmin=0, vmax=2.2 * np.max(percent), aspect="auto", origin="lower")
    for place, m in enumerate(first_cell.methods):
        axes = next(panels)
        axes.set_title(m.name + (f", clip {m.clip[0]:g} / {m.clip[1]:g}" if m.clip else ""))
        found = [[cell.methods[place] for cell in row] for row in cells]
        for i, row in enumerate(found):
            for j, one in enumerate(row):
                mean, low, high = one.difference
                axes.text(
                    j, i, f"{mean:+.2f}\n±{(high - low) / 2:.2f}", ha="center", va="center", fontsize=6.5,
                    linespacing=1.0, color="white" if abs(mean) > 0.75 * REACH else "black",
                    fontweight="bold" if one.p < LEVEL else "normal",
                )  # fmt: skip
        means = [[one.difference[0] for one in row] for row in found]
        norm = TwoSlopeNorm(0.0, -REACH, REACH)
        image = axes.imshow(means, cmap="PuOr", norm=norm, aspect="auto", origin="lower")
    for axes in panels:
        axes.set_axis_off()
    for axes in figure.axes:
        axes.grid(visible=False)
        axes.set_xticks(range(len(cells[0])), [str(cell.age) for cell in cells[0]])
        axes.set_yticks(range(len(rows)), titles)
        axes.tick_params(length=0)
        for place in range(1, len(rows)):
            if rows[place][0] != rows[place - 1][0]:
                axes.axhline(place - 0.5, color="black", linewidth=0.8)
    bar = figure.colorbar(image, ax=figure.axes, location="right", shrink=0.6, aspect=30, extend="both")
    bar.set_label("expected reward, mean over a run, minus no ratio (points)", fontsize=7.5)
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
