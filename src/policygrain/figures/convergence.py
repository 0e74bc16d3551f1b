"""The cost of each method to reach the final accuracy of GRPO, relative to GRPO."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import measures
from ..analysis.statistics import over_seeds
from ..results.reader import StudyResults
from .style import PAGE, label, look

BY = {"steps": "optimizer steps", "tokens": "generated tokens", "seconds": "seconds of training"}


def draw(results: StudyResults) -> Figure:
    """A panel per cost: ratio to GRPO by seed, geometric mean with 95% interval over seeds; dashed line: half."""
    arms = [arm for arm in results.arms("headline") if arm != "grpo"]
    figure = Figure(figsize=(PAGE * 0.9, 0.9 + 0.35 * len(arms)))
    panels = figure.subplots(1, len(BY), sharey=True)
    for axes, (by, title) in zip(panels, BY.items(), strict=True):
        axes.axvline(1, color="#000000", linewidth=0.8)
        axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=(0, (3, 2)))
        for i, arm in enumerate(arms):
            values = measures.reached(results, arm, "grpo", by).to_numpy()
            middle, low, high = (2.0**v for v in over_seeds(values))
            style = look(i + 1)
            axes.plot(2**values, np.full(len(values), i) + 0.18, "|", color=style["color"], markersize=6)
            axes.plot([low, high], [i, i], color=style["color"], linewidth=1.2)
            axes.plot([middle], [i], color=style["color"], marker=style["marker"], markersize=5)
        axes.set_xscale("log", base=2)
        axes.set_xlim(0.2, 40)
        axes.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16, 32], ["¼", "½", "1", "2", "4", "8", "16", "32"])
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("ratio to GRPO")
    panels[0].set_yticks(range(len(arms)), [label(arm) for arm in arms])
    panels[0].set_ylim(len(arms) - 0.5, -0.5)
    return figure
