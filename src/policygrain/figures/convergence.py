"""The cost of each method to reach the final accuracy of GRPO, relative to GRPO."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import measures
from ..analysis.statistics import Interval, ranked
from ..results.reader import StudyResults
from .forest import clipped
from .measured import headline
from .style import WIDE, labels, looks

BY = {"steps": "optimizer\nsteps", "tokens": "generated\ntokens", "seconds": "seconds of\ntraining"}
TICKS = {2.0**k: f"{2**k}" if k >= 0 else {-1: "½", -2: "¼", -3: "⅛"}[k] for k in range(-3, 6)}


def draw(results: StudyResults) -> Figure:
    """A panel per cost: ratio to GRPO by seed, median with 95% interval over seeds; dashed line: half.

    A run that never reaches the accuracy has an infinite ratio.
    """
    arms = [arm for arm in headline(results) if arm != "grpo"]
    found = {by: [measures.reached(results, arm, "grpo", by).to_numpy() for arm in arms] for by in BY}
    # As wide as the seeds lie, so that a single wide interval does not hide the others.
    every = np.concatenate([v for values in found.values() for v in values])
    low, high = max(-3.0, min(-1.5, every.min() - 0.3)), min(5.0, max(1.5, every.max() + 0.3))  # of infinite ones 5
    found_looks, label = looks(results.study), labels(results.study)
    figure = Figure(figsize=(WIDE * 0.95, 0.95 + 0.42 * len(arms)))
    panels = figure.subplots(1, len(BY), sharey=True)
    for axes, (by, title) in zip(panels, BY.items(), strict=True):
        axes.axvline(1, color="#000000", linewidth=0.8)
        axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=(0, (3, 2)))
        for i, values in enumerate(found[by]):
            style = found_looks[arms[i]]
            places = 2 ** np.minimum(values, 60.0), np.full(len(values), i + 0.24)
            axes.plot(*places, "|", color=style["color"], markersize=5, alpha=0.6)
            median = ranked(values)
            interval = Interval(*(2.0 ** min(v, 60.0) for v in (median.mean, median.low, median.high)))
            clipped(axes, i, interval, (2**low, 2**high), style)
        axes.set_xscale("log", base=2)
        axes.set_xlim(2**low, 2**high)
        shown = {value: text for value, text in TICKS.items() if 2**low <= value <= 2**high}
        axes.set_xticks(list(shown), list(shown.values()))
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("ratio to GRPO")
    panels[0].set_yticks(range(len(arms)), [label(arm) for arm in arms])
    panels[0].tick_params(axis="y", length=0)
    panels[0].set_ylim(len(arms) - 0.5, -0.5)
    return figure
