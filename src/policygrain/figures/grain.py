"""Accuracy, entropy, clip fraction, ratio variance and gradient noise by the grain of the ratio."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..analysis import measures
from ..results.reader import StudyResults
from .requirements import GRAINS
from .style import COLOURS, PAGE, spread


def draw(results: StudyResults) -> Figure:
    """Five panels by grain; small marks are seeds, points are means with 95% intervals over seeds (`style.spread`)."""

    def ratio_of(arm: str) -> str:
        """The name of the arm's ratio in the probe."""
        return results.matrix.arms[arm].method(results.study).ratio.label

    panels = {
        "validation accuracy (%)": lambda arm: pd.Series(100 * results.final_validation(arm)),
        "entropy (nats/token)": lambda arm: measures.late(results, arm, "entropy_old"),
        "tokens clipped (%)": lambda arm: measures.late(results, arm, "clip_fraction"),
        "variance of the ratio": lambda arm: measures.probed(results, ratio_of(arm), "ratio_variance"),
        "gradient noise": lambda arm: measures.probed(results, ratio_of(arm), "gradient_noise"),
    }
    for arm in GRAINS:
        measures.runs_of(results, arm)
    figure = Figure(figsize=(PAGE, 2.0))
    for axes, (title, read) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for x, arm in enumerate(GRAINS):
            values = read(arm).to_numpy(dtype=float)
            log = title == "variance of the ratio"
            middle, low, high = spread(np.log(values) if log else values)
            middle, low, high = (np.exp(v) if log else v for v in (middle, low, high))
            axes.plot(np.full(len(values), x), values, "_", color="#777777", markersize=6)
            axes.errorbar(
                [x], [middle], yerr=[[max(0.0, middle - low)], [max(0.0, high - middle)]], fmt="o", markersize=4,
                color=COLOURS[0], elinewidth=1, capsize=2,
            )  # fmt: skip
            if log:
                axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xticks(range(len(GRAINS)), GRAINS, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.5, len(GRAINS) - 0.5)
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
    return figure
