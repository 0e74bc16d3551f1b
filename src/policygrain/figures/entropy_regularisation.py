"""Entropy and accuracy of TEPO's complete form, of an entropy bonus and of KL on all tokens (after its figure 4)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .lines import over_steps
from .requirements import ENTROPY_ARMS

PANELS = {"entropy_old": "entropy (nats per token)", "sampled_accuracy": "accuracy of samples"}


def draw(results: StudyResults) -> Figure:
    """Two panels over steps."""
    return over_steps(results, "entropy_regularisation", ENTROPY_ARMS, PANELS, width=0.8)
