"""The figure of exact cases: directions of expected updates, and differences in reward by the strength of the cause."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from policygrain.figures.style import GREY, PAGE, RATIOS, SKY, YELLOW, Look, look, named_rows, points

from .records import CaseEstimator, CaseRecord, CasesRecord

# Estimators that are drawn as lines, in the order of the legend; all others are grey points.
DRAWN: dict[str, Look] = {
    "token": look(*RATIOS["token"]),
    "joint block, K=2": look(*RATIOS["block"]),
    "sequence": look(*RATIOS["sequence"]),
    "product": look(*RATIOS["product"]),
    "prefix, own gradient": look(*RATIOS["prefix"]),
    "MPO block, K=5, normalised": look(SKY, "X"),
    "MPO block, K=5": look(YELLOW, "p"),
}
WRONG = "#B22222"
DOSES = {
    "first": "tokens before decision",
    "updates_per_batch": "updates per batch",
    "drift": "drift of other logits (sd)",
    "mismatch": "noise on log-probs (sd)",
}


def draw(record: CasesRecord) -> Figure:
    """A row per case: cosines with the exact gradient, and reward minus the baseline's by the strength of the cause."""
    figure = Figure(figsize=(PAGE, 2.2 * len(record.cases) + 0.9))
    heights = [2.2] * len(record.cases) + [0.9]
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, case in zip(parts, record.cases, strict=False):
        estimators = [e for e in case.estimators if e.clip is None]
        part.suptitle(f"{case.title}\n", x=0.01, ha="left", fontweight="bold", fontsize=9)
        part.text(0.01, 0.9, f"Theory predicts: {case.order}", ha="left", va="top", color="#444444")
        left, right = part.subplots(1, 2, squeeze=False)[0]
        _directions(left, case, estimators)
        _doses(right, case)
        left.set_xlabel("cosine with the exact gradient")
        right.set_ylabel(f"reward − {record.baseline}")
    point: Look = {"marker": "o", "color": GREY, "linestyle": "", "markersize": 4.5}
    cross: Look = point | {"marker": "x", "color": WRONG, "markeredgewidth": 1.4}
    drawn = [*DRAWN.values(), point, point | {"markerfacecolor": "white"}, cross]
    shown = [Line2D([], [], **{"markersize": 4, "linewidth": 1.3, **one}) for one in drawn]
    texts = [*DRAWN, "expected update", f"one batch of {record.batch}", "x1 pushed the wrong way"]
    parts[-1].legend(shown, texts, loc="center", ncols=3)
    return figure


def _look(name: str) -> Look:
    return DRAWN.get(name, look(GREY, "o"))


def _directions(axes: Axes, case: CaseRecord, estimators: list[CaseEstimator]) -> None:
    """A line per estimator: cosine of the expected update, and of updates from single batches."""
    for place, estimator in enumerate(estimators):
        colour = _look(estimator.name)["color"]
        middle, low, high = estimator.batch_cosine
        axes.plot([middle, estimator.cosine], [place, place], color=colour, linewidth=0.9, alpha=0.6)
        ends = [[middle - low], [high - middle]]
        axes.errorbar([middle], [place], xerr=ends, **look(colour, "o", "white"), markersize=3.8, elinewidth=0.9)
        if estimator.push * case.exact_push < 0:
            axes.plot([estimator.cosine], [place], "x", color=WRONG, markersize=5, markeredgewidth=1.5)
        else:
            axes.plot([estimator.cosine], [place], "o", color=colour, markersize=4.2)
    named_rows(axes, [e.name for e in estimators], below=0.4)
    axes.tick_params(axis="y", labelsize=7)
    for text, estimator in zip(axes.get_yticklabels(), estimators, strict=True):
        text.set_color(_look(estimator.name)["color"])
    axes.set_xlim(0, 1.05)


def _doses(axes: Axes, case: CaseRecord) -> None:
    """The difference to the baseline by what is varied."""
    places = np.arange(len(case.doses))
    axes.axhline(0, color="#000000", linewidth=0.6)
    for index, name in enumerate(DRAWN):
        points(
            axes,
            places + 0.05 * (index - len(DRAWN) / 2),
            case.of(name).doses,
            **DRAWN[name],
            markersize=3.2,
            elinewidth=0.8,
            capsize=0,
        )
    axes.set_xticks(places, [f"{dose:g}" for dose in case.doses])
    axes.set_xlabel(DOSES[case.dose])
