"""Clip fraction by step, below and above the band (after TEPO's figure 2)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import Panel, draw_panel
from .measured import headline
from .style import WIDE, from_zero, legend

PANELS = (
    Panel("clip_fraction_low", "clipped below (ratio < 1 − ε)", scale=100, most=100),
    Panel("clip_fraction_high", "clipped above (ratio > 1 + ε)", scale=100, most=100),
)


def draw(results: StudyResults) -> Figure:
    """Share of response tokens whose gradient is zero because of the clip; means with 95% intervals over seeds."""
    figure = Figure(figsize=(WIDE * 0.9, 2.4))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, panel in zip(panels, PANELS, strict=True):
        draw_panel(axes, results, headline(results), panel)
    # Bands of different ratios clip shares of different orders of magnitude, and none clips nothing for ever.
    from_zero(panels[0], "y")
    panels[0].set_ylabel("tokens clipped (%)")
    legend(figure)
    return figure
