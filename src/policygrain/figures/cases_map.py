"""The map of regimes on random policies whose gradient is known; laid out and coloured like that of training runs."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..analysis.statistics import LEVEL
from ..results.cases import MapCell, MapRecord
from .phase import Shown, grey, panel
from .style import FULL_PAGE

REACH = 2.0  # points at which the colours end
ACROSS = 3
ROWS = {"length": "{:g} tokens", "group": "groups of {:g}", "learning_rate": "rate {:g}"}


def draw(record: MapRecord) -> Figure:
    """A panel with the reference's expected reward, then one per method with its differences from it."""
    rows = by_row(record)
    first = rows[0][1][0]
    figure = Figure(figsize=(FULL_PAGE, 9.2))
    panels = figure.subfigures(1, 1).subplots(-(-(len(first.methods) + 1) // ACROSS), ACROSS, sharex=True, sharey=True)
    reference, *others = panels.flat
    grey(reference, [[cell.area[0] for cell in cells] for _, cells in rows])
    reference.set_title("no ratio: mean expected reward")
    shown = None
    for place, axes in enumerate(others[: len(first.methods)]):
        methods = [[cell.methods[place] for cell in cells] for _, cells in rows]
        cells = [[Shown(*m.difference, m.p < LEVEL) for m in row] for row in methods]
        shown = panel(axes, cells, REACH, digits=2)
        method = methods[0][0]
        axes.set_title(method.name + (f", clip {method.clip[0]:g} / {method.clip[1]:g}" if method.clip else ""))
    for axes in panels.flat:
        axes.grid(visible=False)
        axes.set_xticks(range(len(rows[0][1])), [str(cell.age) for cell in rows[0][1]])
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.tick_params(length=0)
        for edge in range(1, len(rows)):
            if rows[edge][0].split()[0] != rows[edge - 1][0].split()[0] and "tokens" not in rows[edge][0]:
                axes.axhline(edge - 0.5, color="black", linewidth=0.8)
    figure.supxlabel("age of rollouts (optimizer steps)", fontsize=8)
    if shown is not None:
        bar = figure.colorbar(shown, ax=list(panels.flat), location="right", shrink=0.6, aspect=30, extend="both")
        bar.set_label("expected reward, mean over a run, minus no ratio (points)", fontsize=7.5)
    return figure


def by_row(record: MapRecord) -> list[tuple[str, list[MapCell]]]:
    """The cells of each row, by age: first those that vary the length, then the groups, then the learning rate."""
    rows = []
    for key, name in ROWS.items():
        values = {other: getattr(_middle(record), other) for other in ROWS if other != key}
        cells = [c for c in record.cells if all(getattr(c, other) == value for other, value in values.items())]
        for value in sorted({getattr(c, key) for c in cells}):
            rows.append((name.format(value), [c for c in cells if getattr(c, key) == value]))
    return rows
