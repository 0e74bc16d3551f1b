"""Style and common parts of figures, readable in a column of a paper, in greyscale, and with colour blindness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from ..analysis.statistics import Interval
from ..study import Study
from ..study.runs import START, run_matrix
from . import SUFFIXES

matplotlib.use("Agg")

COLUMN, PAGE = 3.3, 6.9  # widths in inches: of a column, and of the text of a paper with two columns
# The colours of Okabe and Ito, which differ with colour blindness too; markers and dashes differ in greyscale.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "p", "h", "*"]
GREY = "#777777"  # the initial model, and what is none of the methods
DASHES: list[Any] = ["-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (7, 2)), "-"]

matplotlib.style.use(str(Path(__file__).with_name("style.mplstyle")))

Look = dict[str, Any]  # keyword arguments of `plot`
# Colour and marker of the most compared published methods and of ratios. GRPO, TEPO and MPO have those of their ratio;
# a preset that is named after a ratio, and differs only in it, has a white face.
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = COLOURS
METHODS = {"grpo": (BLUE, "o"), "dapo": (SKY, "s"), "tepo": (ORANGE, "D"), "mpo": (GREEN, "^")}
RATIOS = {
    "token": (BLUE, "o"),
    "sequence": (ORANGE, "D"),
    "block": (GREEN, "^"),
    "prefix": (PINK, "v"),
    "none": (YELLOW, "s"),
    "product": (BLACK, "P"),
}
PLAIN: Look = {"color": "#333333", "marker": "o", "linestyle": "-"}  # for rows that are identified by their names


def look(colour: str, marker: str, face: str = "") -> Look:
    """A colour with a marker, whose face has that colour by default, and the line style that goes with the marker."""
    line = DASHES[MARKERS.index(marker) % len(DASHES)]
    return {"color": colour, "marker": marker, "markerfacecolor": face or colour, "linestyle": line}


FIXED = {name: look(*pair) for name, pair in METHODS.items()}
FIXED |= {"reinforce" if ratio == "none" else ratio: look(*pair, face="white") for ratio, pair in RATIOS.items()}
FIXED["none"] = FIXED["reinforce"]
# For the others: all pairs of a colour and a marker, the next of each in turn.
FREE = [look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i in range(len(COLOURS) * len(MARKERS))]


def looks(study: Study) -> dict[str, Look]:
    """Colour, marker and line style of every arm of a study, the same in all its figures.

    Arms without a fixed look get the least used colours, in the order of the study. An arm with other training settings
    looks like the arm of the same method with the study's settings, if there is one.
    """
    arms = run_matrix(study).arms
    keys = [arm.method_name if arm.method_name in arms else name for name, arm in arms.items()]
    chosen: dict[str, Look] = {START: {"color": GREY, "marker": "_", "linestyle": ":"}}
    fixed = {key: FIXED.get(key.split("+", maxsplit=1)[0]) for key in keys}
    for key in sorted(fixed, key=lambda key: fixed[key] is None):
        mine, used = fixed[key], Counter(one["color"] for one in chosen.values())
        if mine is None or mine in chosen.values():
            mine = min([one for one in FREE if one not in chosen.values()] or FREE, key=lambda one: used[one["color"]])
        chosen[key] = mine
    return chosen | {name: chosen[key] for name, key in zip(arms, keys, strict=True)}


def points(axes: Axes, x: ArrayLike, intervals: ArrayLike, **style: Any) -> None:
    """The mean, lower and upper limit of each of ``intervals`` at ``x``, joined by a line unless its style is empty."""
    rows = np.array(intervals, dtype=float)
    errors = np.array([rows[:, 0] - rows[:, 1], rows[:, 2] - rows[:, 0]]).clip(min=0)
    sizes = {"markersize": 3.8, "linewidth": 1.1, "elinewidth": 0.9, "capsize": 1.6}
    axes.errorbar(x, rows[:, 0], yerr=errors, **(sizes | style))


def interval_row(axes: Axes, y: float, interval: Interval, look: Look, limits: tuple[float, float]) -> None:
    """The part of an interval within ``limits``, at height ``y``; arrows show where the interval is cut off."""
    low, high = (float(np.clip(end, *limits)) for end in interval[1:])
    axes.plot([low, high], [y, y], color=look["color"], linewidth=1.3, solid_capstyle="butt")
    for goes_on, end, arrow in ((interval.low < limits[0], low, "<"), (interval.high > limits[1], high, ">")):
        if goes_on:
            axes.plot([end], [y], arrow, color=look["color"], markersize=4, clip_on=False)
    if limits[0] <= interval.mean <= limits[1]:
        axes.plot([interval.mean], [y], markersize=4.5, **{**look, "linestyle": ""})


def named_rows(axes: Axes, names: Sequence[str], below: float) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, pad=6)
    axes.set_ylim(len(names) - below, below - 1)


def panels(
    count: int, columns: int, height: float, width: float | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure, by default of a column or page, with panels in rows of ``columns`` that are ``height`` inches high."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width or (COLUMN if count <= 2 else PAGE), rows * height))
    grid = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def legend(figure: Figure) -> None:
    """One legend for all panels, above them, in as many columns as fit."""
    legends = [axes.get_legend_handles_labels() for axes in figure.axes]
    pairs = [pair for handles, texts in legends for pair in zip(texts, handles, strict=True)]
    # Markers come after the lines with error bars.
    by_text = dict(sorted(pairs, key=lambda pair: isinstance(pair[1], Line2D)))
    for columns in range(len(by_text), 0, -1):
        drawn = figure.legend(list(by_text.values()), list(by_text), loc="outside upper center", ncols=columns)
        if columns == 1 or drawn.get_window_extent().width < 0.97 * figure.bbox.width:
            return
        drawn.remove()


def save(figure: Figure, out: Path, suffixes: Iterable[str] = SUFFIXES) -> None:
    """Write the figure in all formats, without a date, so that the same figure gives the same files."""
    out.parent.mkdir(parents=True, exist_ok=True)
    # The last digits of a layout differ from call to call, so it is made once and rounded.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(end, 4) for end in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    for suffix in suffixes:
        metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix, {})
        figure.savefig(out.with_name(out.name + suffix), metadata=metadata)
