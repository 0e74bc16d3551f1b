"""Accuracy, gradient norm, entropy and response length during training (after TEPO's figure 3)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import GRADIENT_NORM, Panel, draw_panel
from .measured import headline
from .style import WIDE, legend

PANELS = (
    Panel("validation_accuracy", "validation accuracy (%)", scale=100, smooth=1, most=100),  # always the same problems
    GRADIENT_NORM,
    Panel("entropy_old", "entropy (nats per token)"),
    Panel("response_length_mean", "response length (tokens)"),
)


def draw(results: StudyResults) -> Figure:
    """Four panels by training step; means with 95% intervals over seeds."""
    arms = list(dict.fromkeys([*headline(results), *(a for a in results.arms("ablation") if a == "grpo_clip_higher")]))
    figure = Figure(figsize=(WIDE, 4.0))
    for axes, panel in zip(figure.subplots(2, 2).flatten(), PANELS, strict=True):
        draw_panel(axes, results, arms, panel)
    legend(figure)
    return figure
