"""Ratios of every grain with the same sparse reward, and training without a ratio (after TEPO's figure 5)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import over_steps
from .requirements import RATIO_ARMS

PANELS = {
    "sampled_accuracy": "accuracy of samples (share)",
    "effective_sample_share": "effective sample share",
    "gradient_norm": "gradient norm",
}


def draw(results: StudyResults) -> Figure:
    """Three panels by training step; arms differ only in the ratio and its clip band. Intervals are over seeds."""
    return over_steps(results, "importance_sampling", RATIO_ARMS, PANELS, width=1.0)
