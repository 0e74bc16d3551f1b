"""Curves of some arms over training steps, side by side: the shape that several figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ..errors import UserError
from ..results.reader import StudyResults
from .style import PAGE, curve, shared_legend


def over_steps(
    results: StudyResults, figure: str, arms: Sequence[str], panels: Mapping[str, str], width: float
) -> Figure:
    """A panel per metric, a curve per arm that was trained; UserError naming the arms where none of them was."""
    there = [arm for arm in arms if (results.steps["arm"] == arm).any()]
    if len(there) < 2:
        raise UserError(f"{figure}: at least two of these have to be trained: {', '.join(arms)}; see `experiments`.")
    drawing = Figure(figsize=(PAGE * width, 2.2))
    axes = drawing.subplots(1, len(panels))
    for ax, (metric, title) in zip(axes, panels.items(), strict=True):
        for i, arm in enumerate(there):
            curve(ax, results, arm, metric, i, smooth=3)
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.set_ylim(0, 1.05 if "share" in metric or (metric == "sampled_accuracy" and ax.get_ylim()[1] > 1) else None)
    shared_legend(drawing, axes[0], len(there))
    return drawing
