"""Panels with the curves of several arms by training step, used by several figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ..errors import UserError
from ..results.reader import StudyResults
from .style import WIDE, curve, shared_legend


def over_steps(
    results: StudyResults, figure: str, arms: Sequence[str], panels: Mapping[str, str], width: float
) -> Figure:
    """A panel per metric with a curve per trained arm: means with 95% intervals over seeds.

    UserError if fewer than two of ``arms`` were trained.
    """
    trained = [arm for arm in arms if (results.steps["arm"] == arm).any()]
    if len(trained) < 2:
        raise UserError(f"{figure}: at least two of these must be trained: {', '.join(arms)}; see `experiments`.")
    result = Figure(figsize=(WIDE * width, 2.2))
    axes = result.subplots(1, len(panels))
    for ax, (metric, title) in zip(axes, panels.items(), strict=True):
        for i, arm in enumerate(trained):
            curve(ax, results, arm, metric, i, smooth=3)
        ax.set_title(title)
        ax.set_xlabel("training step")
        ax.set_ylim(0, 1.05 if "share" in metric or (metric == "sampled_accuracy" and ax.get_ylim()[1] > 1) else None)
    shared_legend(result, axes[0], len(trained))
    return result
