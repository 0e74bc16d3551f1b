"""Clip fraction by step, below and above the band (after TEPO's figure 2)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .style import PAGE, curve, shared_legend

PANELS = {
    "clip_fraction_low": "clipped below (ratio < 1 − ε)",
    "clip_fraction_high": "clipped above (ratio > 1 + ε)",
}


def draw(results: StudyResults) -> Figure:
    """Share of response tokens whose gradient is zero because of the clip; means with 95% intervals over seeds."""
    arms = results.arms("headline")
    figure = Figure(figsize=(PAGE * 0.7, 2.1))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        for i, arm in enumerate(arms):
            curve(axes, results, arm, metric, i, smooth=3, scale=100)
        axes.set_title(title)
        axes.set_xlabel("training step")
    panels[0].set_ylim(bottom=0)  # for both panels, after both are drawn: they share the axis
    panels[0].set_ylabel("tokens clipped (%)")
    shared_legend(figure, panels[0], len(arms))
    return figure
