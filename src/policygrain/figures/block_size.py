"""Accuracy over the block's size K (after MPO)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..analysis import measures
from ..results.reader import StudyResults
from .style import COLUMN
from .sweeps import accuracy_interval, against, arms_by


def draw(results: StudyResults) -> Figure:
    """Test accuracy, mean over benchmarks, by K."""
    arms = arms_by(results, "size")
    figure = Figure(figsize=(COLUMN, 2.2))
    axes = figure.subplots()
    against(
        axes,
        arms,
        lambda arm: measures.accuracy(results, arm),
        index=0,
        places=True,
        interval=lambda arm: accuracy_interval(results, arm),
    )
    axes.set_xlabel("block size K (tokens)")
    axes.set_ylabel("accuracy (%)")
    return figure
