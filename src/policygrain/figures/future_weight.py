"""The weight φ of future tokens (after MPO): tokens clipped, and what an update or a final model is worth."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import measures
from ..results.reader import StudyResults
from .forest import line
from .measured import distances, estimated
from .requirements import block_methods
from .style import ABOVE, WIDE, legend, updates_look, updates_text
from .sweeps import accuracy_interval, against, arms_by


def draw(results: StudyResults) -> Figure:
    """Two panels by φ, with the same clip band and K = 5; 95% intervals over start models, or over training seeds."""
    section = results.study.estimators
    found = block_methods(results.study, section.methods, "future_weight") if section else {}
    figure = Figure(figsize=(WIDE * 0.7, 2.4))
    left, right = figure.subplots(1, 2)
    if len(found) > 1:
        steps = distances(results)
        for i, updates in enumerate(steps):
            for axes, metric, scale in ((left, "clip_fraction", 100.0), (right, "cosine", 1.0)):
                values = [scale * estimated(results, name, updates, metric).to_numpy() for name in found.values()]
                line(
                    axes,
                    np.array(list(found)) + 0.006 * i,
                    values,
                    {**updates_look(i, len(steps)), "label": f"after {updates_text(updates)}"},
                )
                axes.set_xticks(list(found))
        right.set_ylabel("cosine of one batch\nwith the true gradient")
        legend(figure, loc=ABOVE)
    else:
        arms = arms_by(results, "future_weight")
        against(left, arms, lambda arm: measures.late(results, arm, "clip_fraction"))
        against(
            right,
            arms,
            lambda arm: measures.accuracy(results, arm),
            interval=lambda arm: accuracy_interval(results, arm),
        )
        right.set_ylabel("accuracy (%)")
    left.set_ylabel("tokens clipped (%)")
    left.set_ylim(bottom=0)
    figure.supxlabel("weight of future tokens φ", fontsize=8)
    return figure
