"""Clip fraction by step, below and above the band (after TEPO's figure 2)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .style import PAGE, curve, shared_legend


def draw(results: StudyResults) -> Figure:
    """Share of response tokens whose gradient is zero because of the clip; means with 95% intervals over seeds."""
    arms = results.arms("headline")
    figure = Figure(figsize=(PAGE * 0.7, 2.1))
    panels = figure.subplots(1, 2, sharey=True)
    steps = results.steps.assign(
        low=results.steps["clip_fraction_low"] * 100, high=results.steps["clip_fraction_high"] * 100
    )
    for axes, (metric, title) in zip(
        panels, {"low": "clipped below (ratio < 1 − ε)", "high": "clipped above (ratio > 1 + ε)"}.items(), strict=True
    ):
        for i, arm in enumerate(arms):
            curve(axes, steps, arm, metric, i, smooth=3)
        axes.set_title(title)
        axes.set_xlabel("training step")
    panels[0].set_ylim(bottom=0)  # for both panels, after both are drawn: they share the axis
    panels[0].set_ylabel("tokens clipped (%)")
    shared_legend(figure, panels[0], len(arms))
    return figure
