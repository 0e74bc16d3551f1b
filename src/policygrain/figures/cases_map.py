"""The map of regimes on random policies whose gradient is known; laid out and coloured like that of training runs."""

from __future__ import annotations

from statistics import mode

from matplotlib.figure import Figure

from ..analysis.statistics import LEVEL
from ..results.case_records import MapCell, MapRecord
from .phase import Shown, grey, panel
from .style import FULL_PAGE

REACH = 2.0  # points at which the colours end
ACROSS = 3
ROWS = {"length": "{} tokens", "group": "groups of {}", "learning_rate": "rate {:g}"}


def draw(record: MapRecord) -> Figure:
    """A panel with the reference's expected reward, then one per method with its differences from it."""
    rows = by_row(record)
    names, cells = [name.format(value) for name, value, _ in rows], [found for *_, found in rows]
    figure = Figure(figsize=(FULL_PAGE, 9.2))
    methods = record.cells[0].methods
    panels = figure.subplots(-(-(len(methods) + 1) // ACROSS), ACROSS, squeeze=False, sharex=True, sharey=True).flat
    first = next(panels)
    first.set_title("no ratio: mean expected reward")
    grey(first, [[cell.area[0] for cell in row] for row in cells])
    shown = None
    for place, (method, axes) in enumerate(zip(methods, panels, strict=False)):
        found = [[cell.methods[place] for cell in row] for row in cells]
        shown = panel(axes, [[Shown(*m.difference, m.p < LEVEL) for m in row] for row in found], REACH, digits=2)
        axes.set_title(method.name + (f", clip {method.clip[0]:g} / {method.clip[1]:g}" if method.clip else ""))
    for axes in panels:
        axes.set_axis_off()
    for axes in figure.axes:
        axes.grid(visible=False)
        axes.set_xticks(range(len(cells[0])), [str(cell.age) for cell in cells[0]])
        axes.set_yticks(range(len(rows)), names)
        axes.tick_params(length=0)
        for place in range(1, len(rows)):
            if rows[place][0] != rows[place - 1][0]:
                axes.axhline(place - 0.5, color="black", linewidth=0.8)
    figure.supxlabel("age of rollouts (optimizer steps)", fontsize=8)
    if shown is not None:
        bar = figure.colorbar(shown, ax=figure.axes, location="right", shrink=0.6, aspect=30, extend="both")
        bar.set_label("expected reward, mean over a run, minus no ratio (points)", fontsize=7.5)
    return figure


def by_row(record: MapRecord) -> list[tuple[str, float, list[MapCell]]]:
    """Name and value of what a row varies, and its cells; all else is as in most cells of the record."""
    usual = {key: mode(getattr(cell, key) for cell in record.cells) for key in ROWS}
    rows = []
    for key, name in ROWS.items():
        others = usual.items() - {(key, usual[key])}
        cells = [cell for cell in record.cells if all(getattr(cell, other) == value for other, value in others)]
        values = sorted({getattr(cell, key) for cell in cells})
        rows += [(name, value, [cell for cell in cells if getattr(cell, key) == value]) for value in values]
    return rows
