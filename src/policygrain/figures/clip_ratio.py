"""Clip fraction by step, below and above the band (after TEPO's figure 2)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .measured import headline
from .style import WIDE, curve, shared_legend

PANELS = {
    "clip_fraction_low": "clipped below (ratio < 1 − ε)",
    "clip_fraction_high": "clipped above (ratio > 1 + ε)",
}
LEAST = 0.01  # percent; smaller shares are drawn at the edge


def draw(results: StudyResults) -> Figure:
    """Share of response tokens whose gradient is zero because of the clip; means with 95% intervals over seeds."""
    arms = headline(results)
    figure = Figure(figsize=(WIDE * 0.9, 2.4))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        for i, arm in enumerate(arms):
            curve(axes, results, arm, metric, i, smooth=3, scale=100, least=LEAST)
        axes.set_title(title)
        axes.set_xlabel("training step")
    # Bands of different ratios clip shares of different orders of magnitude.
    panels[0].set_yscale("log")
    panels[0].set_ylim(bottom=LEAST * 0.8)
    panels[0].set_ylabel("tokens clipped (%)")
    shared_legend(figure, panels[0], len(arms))
    return figure
