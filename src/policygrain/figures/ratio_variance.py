"""Variance of every ratio on the same rollouts, by the number of optimizer steps since then (after MPO)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis.statistics import over_seeds
from ..results.reader import StudyResults
from .style import PAGE, look

PANELS = {
    "ratio_variance": "variance of the ratio",
    "effective_sample_share": "effective sample share",
    "gradient_noise": "gradient noise",
}


def draw(results: StudyResults) -> Figure:
    """Three panels: ratios by grain, a line per number of optimizer steps; means with 95% intervals over seeds."""
    probes = results.probes
    names = list(dict.fromkeys(probes["ratio"]))
    figure = Figure(figsize=(PAGE, 2.7))
    panels = figure.subplots(1, len(PANELS))
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        log = metric == "ratio_variance"
        for i, updates in enumerate(sorted(probes["updates"].unique())):
            rows = probes[probes["updates"] == updates]
            values = [rows[rows["ratio"] == name][metric].to_numpy(dtype=float) for name in names]
            points = np.array([over_seeds(np.log(v.clip(min=1e-12)) if log else v) for v in values])
            points = np.exp(points) if log else points
            errors = np.array([points[:, 0] - points[:, 1], points[:, 2] - points[:, 0]]).clip(min=0)
            x = np.arange(len(names)) + 0.12 * (i - 1)
            axes.errorbar(
                x, points[:, 0], yerr=errors, markersize=4, linewidth=1, elinewidth=0.7, capsize=1.5,
                label=f"after {updates} update{'' if updates == 1 else 's'}", **look(i),
            )  # fmt: skip
        axes.set_title(title)
        axes.set_xticks(np.arange(len(names)), names, rotation=50, ha="right", rotation_mode="anchor")
        if log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.05 if metric == "effective_sample_share" else None)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure
