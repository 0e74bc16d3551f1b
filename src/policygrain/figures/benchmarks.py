"""Accuracy of the start model and the headline methods on each benchmark and on average (after TEPO's figure 1)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import accuracy
from ..results.layout import START
from ..results.reader import StudyResults
from .measured import headline
from .style import ABOVE, WIDE, legend, looks, name_of


def draw(results: StudyResults) -> Figure:
    """Points per benchmark with 95% intervals over training seeds, of the start model over start models."""
    arms = [START, *headline(results)]
    names = [*results.benchmarks, "average"]
    found = looks(results.study)
    figure = Figure(figsize=(WIDE, 2.7))
    axes = figure.subplots()
    width = 0.72 / len(arms)
    for i, arm in enumerate(arms):
        scores = [results.scores(arm, b) for b in results.benchmarks]
        rows = [*(accuracy([s]) for s in scores), accuracy(scores)]
        means = np.array([r.mean for r in rows]) * 100
        errors = np.array([[r.mean - r.low, r.high - r.mean] for r in rows]).T.clip(min=0) * 100
        axes.errorbar(
            np.arange(len(names)) + (i - (len(arms) - 1) / 2) * width,
            means,
            yerr=errors,
            label=name_of(results, arm),
            markersize=7 if arm == START else 4,
            elinewidth=1.1,
            capsize=1.5,
            **{**found[arm], "linestyle": ""},
        )
    for place in range(1, len(names)):
        axes.axvline(place - 0.5, color="#666666", linewidth=0.8 if place == len(names) - 1 else 0.25)
    axes.set_xticks(np.arange(len(names)), [n.replace("_", " ") for n in names])
    axes.tick_params(axis="x", rotation=25)
    for text in axes.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="x", visible=False)
    legend(figure, loc=ABOVE)
    return figure
