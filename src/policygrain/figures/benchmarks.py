"""Accuracy of the start model and the headline methods on each benchmark and on average (after TEPO's figure 1)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import accuracy
from ..results.layout import START
from ..results.reader import StudyResults
from .style import COLOURS, PAGE, name_of


def draw(results: StudyResults) -> Figure:
    """Bars per benchmark with 95% intervals over training seeds."""
    arms = [START, *results.arms("headline")]
    names = [*results.benchmarks, "average"]
    figure = Figure(figsize=(PAGE, 2.5))
    axes = figure.subplots()
    width = 0.84 / len(arms)
    hatches = ["", "", "///", "...", "xxx", "\\\\\\", "++"]
    for i, arm in enumerate(arms):
        scores = [results.scores(arm, b) for b in results.benchmarks]
        rows = [*(accuracy([s]) for s in scores), accuracy(scores)]
        means = np.array([r.mean for r in rows]) * 100
        errors = np.array([[r.mean - r.low, r.high - r.mean] for r in rows]).T.clip(min=0) * 100
        axes.bar(
            np.arange(len(names)) + (i - (len(arms) - 1) / 2) * width,
            means,
            width,
            yerr=errors,
            label=name_of(results, arm),
            color="#bbbbbb" if arm == START else COLOURS[(i - 1) % len(COLOURS)],
            hatch=hatches[i % len(hatches)],
            edgecolor="white",
            linewidth=0.3,
            error_kw={"elinewidth": 0.7, "capsize": 1.2},
        )
    axes.axvline(len(names) - 1.5, color="#999999", linewidth=0.6)
    axes.set_xticks(np.arange(len(names)), [n.replace("_", "\n") for n in names])
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(0, 100)
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=len(arms))
    return figure
