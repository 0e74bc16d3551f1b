"""Entropy and accuracy of TEPO's complete form, of an entropy bonus and of KL on all tokens (after its figure 4)."""

from __future__ import annotations

from matplotlib.figure import Figure

from .lines import over_steps
from .records import Records

ARMS = ("tepo", "tepo_v1", "tepo_max_entropy", "tepo_full_kl")
PANELS = {"entropy_old": "entropy (nats per token)", "sampled_accuracy": "accuracy of samples"}


def draw(records: Records) -> Figure:
    """Two panels over steps."""
    return over_steps(records, "entropy_regularisation", ARMS, PANELS, width=0.8)
