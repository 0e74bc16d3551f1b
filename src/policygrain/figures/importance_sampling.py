"""Ratios of every grain with the same sparse reward, and training without a ratio (after TEPO's figure 5)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import GRADIENT_NORM, Panel, over_steps
from .requirements import RATIO_ARMS

PANELS = (
    Panel("sampled_accuracy", "accuracy of samples (%)", scale=100, most=100),
    Panel("effective_sample_share", "effective sample share", most=1),
    GRADIENT_NORM._replace(title="gradient norm"),
)


def draw(results: StudyResults) -> Figure:
    """Three panels by training step; arms differ only in the ratio and its clip band. Intervals are over seeds."""
    return over_steps(results, "importance_sampling", RATIO_ARMS, PANELS, width=1.0)
