"""Exact cases: the direction of the expected update, learning curves, and how differences grow with their cause."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.cases import CaseEstimator, CaseRecord, CasesRecord
from .style import COLOURS, DASHES, FULL_PAGE, MARKERS

# Those drawn as curves, in the order of the legend; the others are points of the first column only.
DRAWN = (
    "token",
    "joint block, K=2",
    "sequence",
    "product",
    "prefix, own gradient",
    "MPO block, K=5, normalised",
    "MPO block, K=5",
)
OTHERS = "#888888"
WRONG = "#B22222"
DOSES = {
    "first": "tokens before the decision",
    "updates_per_batch": "updates per batch",
    "drift": "drift of irrelevant logits (sd)",
    "mismatch": "noise on log-probabilities (sd)",
}


def draw(record: CasesRecord) -> Figure:
    """A row per case, three columns."""
    # Three columns with long names: a figure for a whole page, not for a column.
    figure = Figure(figsize=(FULL_PAGE, 2.05 * len(record.cases) + 0.5))
    panels = figure.subplots(len(record.cases), 3, width_ratios=(1.2, 1, 1), squeeze=False)
    for row, case in zip(panels, record.cases, strict=True):
        found = [e for e in case.estimators if e.clip is None]
        _directions(row[0], case, found)
        _curves(row[1], case, found)
        _doses(row[2], case, found)
        # The case's name begins above the names of the estimators.
        row[0].set_title(case.title, x=-0.62, loc="left", fontweight="bold", fontsize=9, pad=8)
        row[1].set_title(f"Theory predicts: {case.order}", loc="left", color="#444444", pad=8)
        row[0].set_xlabel("cosine with the exact gradient")
        row[1].set_xlabel("updates")
        row[1].set_ylabel("expected reward")
        row[2].set_ylabel(f"reward − {record.baseline}")
    handles = [Line2D([], [], markersize=4, linewidth=1.3, **_look(name)) for name in DRAWN]
    points = {"color": OTHERS, "linestyle": "", "markersize": 4.5}
    handles += [
        Line2D([], [], marker="o", **points),  # type: ignore[arg-type]
        Line2D([], [], marker="o", markerfacecolor="white", **points),  # type: ignore[arg-type]
        Line2D([], [], marker="x", markeredgewidth=1.4, color=WRONG, linestyle="", markersize=4.5),
    ]
    labels = [*DRAWN, "expected update", f"one batch of {record.batch}", "x1 pushed the wrong way"]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=2.6)
    return figure


def _look(name: str) -> dict[str, Any]:
    """Colour, marker and dash of an estimator; grey for those that are not drawn as curves."""
    if name not in DRAWN:
        return {"color": OTHERS, "marker": "o", "linestyle": "-"}
    index = DRAWN.index(name)
    return {"color": COLOURS[index], "marker": MARKERS[index], "linestyle": DASHES[index]}


def _directions(axes: Axes, case: CaseRecord, found: list[CaseEstimator]) -> None:
    """A line per estimator: cosine of the expected update, and of updates from single batches."""
    for place, estimator in enumerate(found):
        colour = _look(estimator.name)["color"]
        middle, low, high = estimator.batch_cosine
        axes.plot([middle, estimator.cosine], [place, place], color=colour, linewidth=0.9, alpha=0.6)
        axes.errorbar(
            [middle], [place], xerr=[[middle - low], [high - middle]], fmt="o", markersize=3.8, color=colour,
            markerfacecolor="white", elinewidth=0.9,
        )  # fmt: skip
        if estimator.push * case.exact_push < 0:
            axes.plot([estimator.cosine], [place], "x", color=WRONG, markersize=5, markeredgewidth=1.5)
        else:
            axes.plot([estimator.cosine], [place], "o", color=colour, markersize=4.2)
    axes.set_yticks(range(len(found)), [e.name for e in found])
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    for text, estimator in zip(axes.get_yticklabels(), found, strict=True):
        text.set_color(_look(estimator.name)["color"])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(0, 1.05)


def _curves(axes: Axes, case: CaseRecord, found: list[CaseEstimator]) -> None:
    """Expected reward by update, with a band of 95%."""
    for name in reversed(DRAWN):
        estimator = next(e for e in found if e.name == name)
        mean, half = np.array(estimator.curve), np.array(estimator.half_width)
        style = _look(name) | {"marker": ""}
        axes.plot(case.updates, mean, linewidth=1.3, **style)
        axes.fill_between(case.updates, mean - half, mean + half, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlim(0, case.updates[-1])


def _doses(axes: Axes, case: CaseRecord, found: list[CaseEstimator]) -> None:
    """The difference to the baseline by what is varied."""
    places = np.arange(len(case.doses))
    axes.axhline(0, color="#000000", linewidth=0.6)
    for index, name in enumerate(DRAWN):
        values = np.array(next(e for e in found if e.name == name).doses)
        shifted = places + 0.05 * (index - len(DRAWN) / 2)
        error = [values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]]
        axes.errorbar(shifted, values[:, 0], yerr=error, markersize=3.2, linewidth=1.1, elinewidth=0.8, **_look(name))
    axes.set_xticks(places, [f"{dose:g}" for dose in case.doses])
    axes.set_xlabel(DOSES[case.dose])
