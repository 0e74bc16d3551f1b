"""Clip fraction and accuracy by the weight φ of future tokens (after MPO)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..analysis import measures
from ..results.reader import StudyResults
from .style import PAGE
from .sweeps import accuracy_interval, against, arms_by


def draw(results: StudyResults) -> Figure:
    """Two panels by φ, with the same clip band and K = 5; means with 95% intervals over seeds."""
    arms = arms_by(results, "future_weight")
    figure = Figure(figsize=(PAGE * 0.7, 2.2))
    left, right = figure.subplots(1, 2)
    against(left, arms, lambda arm: measures.late(results, arm, "clip_fraction"), index=1)
    against(
        right,
        arms,
        lambda arm: measures.accuracy(results, arm),
        index=0,
        interval=lambda arm: accuracy_interval(results, arm),
    )
    left.set_ylabel("tokens clipped (%)")
    right.set_ylabel("accuracy (%)")
    left.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xlabel("weight of future tokens φ")
    return figure
