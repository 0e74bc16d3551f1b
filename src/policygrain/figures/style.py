"""The style of all figures: readable in a column of a paper, in greyscale, and with colour blindness."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..objective import comparison_names, method, method_names
from ..results.layout import START
from ..results.reader import StudyResults
from ..study import Study
from ..study.runs import run_matrix
from . import SUFFIXES

matplotlib.use("Agg")

# Widths in inches. Shrunk to a column of a paper or to a phone, the text of a wide figure has 5 points.
COLUMN, NARROW, WIDE, FULL_PAGE = 3.3, 3.9, 5.0, 7.7
# The colours of Okabe and Ito, which differ with colour blindness too; markers and dashes differ in greyscale.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "p", "h", "*"]
GREY = "#777777"  # the start model, and what is none of the methods
DEGREES = ["#B9A3D6", "#7E57B5", "#3A1769"]  # few to many updates
Place = Literal["outside lower center", "outside upper center", "center"]  # of a legend
BELOW: Place = "outside lower center"
ABOVE: Place = "outside upper center"
DASHES: list[Any] = [
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1)),
    (0, (7, 2)),
    "-",
]

matplotlib.rcParams.update(
    {
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "legend.fontsize": 7.5,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.linewidth": 0.4,
        "grid.alpha": 0.4,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "pdf.fonttype": 42,
        "svg.hashsalt": "policygrain",  # without it, element names differ from call to call
        "figure.dpi": 200,  # also where the layout is made: the width of texts depends on it
        "savefig.dpi": 200,
    }
)


def updates_text(updates: object) -> str:
    """`1 update`, `16 updates`."""
    return f"{updates} update{'' if str(updates) == '1' else 's'}"


SETTINGS: dict[str, Callable[[str], str]] = {
    "updates_per_batch": updates_text,
    "epochs": lambda epochs: f"{epochs} pass{'' if str(epochs) == '1' else 'es'}",
    "sampling_seed": lambda _: "other sampling seeds",
    "shuffle_rewards": lambda _: "shuffled rewards",
    "learning_rate": lambda rate: f"learning rate {float(rate):g}",
}


@functools.lru_cache(maxsize=8)
def _of_presets() -> dict[str, str]:
    return {name: method(name).label for name in (*method_names(), *comparison_names())}


def labels(study: Study) -> Callable[[str], str]:
    """What gives an arm or method its name in figures and tables: `TEPO, 16 updates`.

    The name of a method is its `label`. Without one it is its ratio, its base and the rest of its key, or its key.
    """

    def of_method(name: str) -> str:
        if name == START:
            return "start model"
        own = study.methods.get(name)
        base = own.base if own else None
        if own and own.label:
            return own.label
        if name in _of_presets():
            return _of_presets()[name]
        if name in RATIOS:
            return f"{name} ratio"
        if base and name.startswith(f"{base}_"):
            return f"{of_method(base).removesuffix(' ratio')}, {name.removeprefix(f'{base}_').replace('_', ' ')}"
        return name.replace("_", " ")

    def label(arm: str) -> str:
        name, *settings = arm.split("+")
        parts = [of_method(name)]
        for setting in settings:
            key, _, value = setting.partition("=")
            parts.append(SETTINGS[key](value) if key in SETTINGS else f"{key.replace('_', ' ')} {value}")
        return ", ".join(parts)

    return label


def name_of(results: StudyResults, arm: str, among: Iterable[str] = ()) -> str:
    """The label of an arm; one whose training made no optimizer step says so.

    ``among``: the arms beside it. If some of them differ from it in the updates per batch, its own are named too.
    """
    found = labels(results.study)(arm)
    if "+" not in arm and any(other.startswith(f"{arm}+updates_per_batch=") for other in among):
        found += f", {updates_text(results.study.training.updates_per_batch)}"
    return found + (" (no updates)" if arm in results.untrained else "")


Look = dict[str, Any]  # keyword arguments of `plot`
# Ratios, and the methods that are compared most: the method with a ratio has its colour and marker, a ratio alone has
# them with a white face. So has a method of a study that is named after a ratio.
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
NAMED_AFTER = {**{name: name for name in RATIOS}, "reinforce": "none"}  # method → the ratio that it stands for


def look(colour: str, marker: str, face: str = "") -> Look:
    """A colour with a marker, whose face has that colour by default, and the line style that goes with the marker."""
    line = DASHES[MARKERS.index(marker) % len(DASHES)]
    return {"color": colour, "marker": marker, "markerfacecolor": face or colour, "linestyle": line}


def ratio_look(ratio: str) -> Look:
    """Colour, marker and line style of a ratio by its name."""
    return look(*RATIOS.get(ratio, (GREY, "X")), face="white")


def updates_look(index: int, of: int) -> Look:
    """The look of a number of updates, the n-th of ``of``: darker with more. No method has these colours."""
    return look(DEGREES[len(DEGREES) - of + index if of <= len(DEGREES) else index % len(DEGREES)], MARKERS[index % 7])


def looks(study: Study) -> dict[str, Look]:
    """Colour, marker and line style of every arm and measured method of a study, the same in all its figures.

    Those that have no fixed look get, in the order of the study, the colours and markers that are used least. An arm
    that differs in settings alone looks like its method if the study has that, too.
    """
    arms = run_matrix(study).arms
    keys = [arm.method_name if arm.method_name in arms else name for name, arm in arms.items()]
    measured = [name for section in (study.estimators, study.rounds) if section for name in section.methods]
    chosen = {START: {"color": GREY, "marker": "_", "linestyle": ":"}}
    for group in (keys, measured):  # arms first: their figures have curves that cross
        counts = Counter[str]()
        new = [key for key in dict.fromkeys(group) if key not in chosen]
        for key in sorted(new, key=lambda key: _fixed(key) is None):
            mine = _fixed(key)
            if mine is None or mine in chosen.values():
                every = [look(colour, marker) for colour in COLOURS for marker in MARKERS]
                free = [one for one in every if one not in chosen.values()]
                mine = min(free or [look(BLACK, "X")], key=lambda one: (counts[one["color"]], counts[one["marker"]]))
            chosen[key] = mine
            counts.update([mine["color"], mine["marker"]])
    return chosen | {name: chosen[key] for name, key in zip(arms, keys, strict=True)}


def _fixed(key: str) -> Look | None:
    name = key.split("+", maxsplit=1)[0]
    return ratio_look(NAMED_AFTER[name]) if name in NAMED_AFTER else look(*METHODS[name]) if name in METHODS else None


def from_zero(axes: Axes, which: Literal["x", "y"], least: float = 0.01) -> None:
    """A logarithmic axis that begins with 0: it is linear from there to ``least``."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("symlog", linthresh=least, linscale=0.5)
    set_limits = axes.set_xlim if which == "x" else axes.set_ylim
    _, most = set_limits(0)
    powers = [least * 10**i for i in range(8)]
    ticks = [0, *(power for power in powers if power <= most)]
    (axes.set_xticks if which == "x" else axes.set_yticks)(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def legend(
    figure: Figure | SubFigure, entries: tuple[Sequence[Artist], Sequence[str]] | None = None, loc: Place = BELOW
) -> None:
    """One legend for all panels, in as many columns as fit; ``entries``: handles and texts, else of all panels."""
    if entries is None:
        found = [axes.get_legend_handles_labels() for axes in figure.axes]
        each = [pair for handles, texts in found for pair in zip(texts, handles, strict=True)]
        # What is shaded or marked comes after the lines with error bars.
        by_text = dict(sorted(each, key=lambda pair: isinstance(pair[1], Patch | Line2D)))
        entries = list(by_text.values()), list(by_text)
    for columns in range(len(entries[1]), 0, -1):
        drawn = figure.legend(*entries, loc=loc, ncols=columns)
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
