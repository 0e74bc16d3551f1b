"""Accuracy by block size K (after MPO)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..analysis import measures
from ..results.reader import StudyResults
from .style import COLUMN
from .sweeps import accuracy_interval, against, arms_by


def draw(results: StudyResults) -> Figure:
    """Final accuracy, mean over benchmarks, by K, with 95% intervals over seeds."""
    arms = arms_by(results, "size")
    figure = Figure(figsize=(COLUMN, 2.2))
    axes = figure.subplots()
    against(
        axes,
        arms,
        lambda arm: measures.accuracy(results, arm),
        index=0,
        equidistant=True,
        interval=lambda arm: accuracy_interval(results, arm),
    )
    axes.set_xlabel("block size K (tokens)")
    axes.set_ylabel("accuracy (%)")
    return figure
