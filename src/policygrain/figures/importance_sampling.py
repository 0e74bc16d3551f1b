"""Ratios of every grain under the same sparse reward, and no ratio at all (after TEPO's figure 5)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import over_steps
from .requirements import RATIO_ARMS

PANELS = {
    "sampled_accuracy": "accuracy of samples",
    "effective_sample_share": "effective sample share",
    "gradient_norm": "gradient norm before clipping",
}


def draw(results: StudyResults) -> Figure:
    """Three panels over steps; the arms differ in the ratio, and in the band that belongs to it, alone."""
    return over_steps(results, "importance_sampling", RATIO_ARMS, PANELS, width=1.0)
