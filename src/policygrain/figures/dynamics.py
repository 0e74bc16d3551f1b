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


LEAST = 0.1  # lower end of a logarithmic axis
OUTLIER = 1000  # times the median


def _has_outliers(results: StudyResults, metric: str) -> bool:
    if metric not in results.steps:
        return False
    values = results.steps[metric]
    return bool(values.max() > OUTLIER * values.median() > 0)


def draw(results: StudyResults) -> Figure:
    """Four panels by training step; means with 95% intervals over seeds."""
    arms = list(dict.fromkeys([*headline(results), *(a for a in results.arms("ablation") if a == "grpo_clip_higher")]))
    figure = Figure(figsize=(WIDE, 4.0))
    panels = figure.subplots(2, 2).flatten()
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        accuracy = metric == "validation_accuracy"  # always of the same problems, so it is not smoothed
        logarithmic = metric == "gradient_norm" and _has_outliers(results, metric)
        how = {"smooth": 1, "scale": 100} if accuracy else {"smooth": 3}
        for i, arm in enumerate(arms):
            curve(axes, results, arm, metric, i, **how, least=LEAST if logarithmic else float("-inf"))
        axes.set_title(title)
        axes.set_xlabel("training step")
        if logarithmic:
            axes.set_yscale("log")
        elif not accuracy:
            axes.set_ylim(bottom=0)
    shared_legend(figure, panels[0], len(arms))
    return figure
