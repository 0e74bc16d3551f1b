"""Accuracy, gradient norm, entropy and response length during training (after TEPO's figure 3)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .measured import headline
from .style import WIDE, curve, shared_legend

PANELS = {
    "validation_accuracy": "validation accuracy (%)",
    "gradient_norm": "gradient norm before clipping",
    "entropy_old": "entropy (nats per token)",
    "response_length_mean": "response length (tokens)",
}


def draw(results: StudyResults) -> Figure:
    """Four panels by training step; means with 95% intervals over seeds."""
    arms = list(dict.fromkeys([*headline(results), *(a for a in results.arms("ablation") if a == "grpo_clip_higher")]))
    figure = Figure(figsize=(WIDE, 4.0))
    panels = figure.subplots(2, 2).flatten()
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        accuracy = metric == "validation_accuracy"  # always of the same problems, so it is not smoothed
        for i, arm in enumerate(arms):
            curve(axes, results, arm, metric, i, smooth=1 if accuracy else 3, scale=100 if accuracy else 1)
        axes.set_title(title)
        axes.set_xlabel("training step")
        if not accuracy:
            axes.set_ylim(bottom=0)
    shared_legend(figure, panels[0], len(arms))
    return figure
