"""Entropy and accuracy of TEPO, with its penalty, an entropy bonus or KL on all tokens (after TEPO's figure 4)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import Panel, over_steps
from .requirements import ENTROPY_ARMS

PANELS = (
    Panel("entropy_old", "entropy (nats per token)"),
    Panel("sampled_accuracy", "accuracy of samples (%)", scale=100, most=100),
)


def draw(results: StudyResults) -> Figure:
    """Two panels by training step; means with 95% intervals over seeds."""
    return over_steps(results, "entropy_regularisation", ENTROPY_ARMS, PANELS, width=0.8)
