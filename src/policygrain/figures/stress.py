"""Final accuracy against updates per batch: how far off-policy each ratio holds, with and without its clip."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..errors import UserError
from ..study.arms import arms_of
from .records import Records
from .style import PAGE, label, look


def draw(records: Records) -> Figure:
    """A panel with clipping and one without; a line per ratio, whiskers over seeds."""
    experiment = records.study.experiments.get("stress")
    if experiment is None:
        raise UserError("stress: the study has no experiment of this name (methods × vary: {updates_per_batch: […]}).")
    default = records.study.training.updates_per_batch
    table: dict[tuple[str, bool], dict[int, np.ndarray]] = {}
    for arm in arms_of(experiment, records.study):
        method = arm.method(records.study)
        updates = int(dict(arm.settings).get("updates_per_batch", default))
        table.setdefault((method.ratio.name, method.clip.name != "none"), {})[updates] = records.final_validation(
            arm.name
        )
    ratios = list(dict.fromkeys(ratio for ratio, _ in table))
    figure = Figure(figsize=(PAGE * 0.8, 2.4))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, clipped, title in zip(panels, (True, False), ("with clip", "without clip"), strict=True):
        for i, ratio in enumerate(ratios):
            if points := table.get((ratio, clipped)):
                _line(axes, points, i)
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        ticks = sorted({updates for points in table.values() for updates in points})
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel("updates per batch")
        axes.set_ylim(0, None)
    panels[0].set_ylabel("validation accuracy at the end (%)")
    handles = [Line2D([], [], markersize=4, **look(i)) for i in range(len(ratios))]
    names = [f"{label(r)} ratio" if r != "none" else "no ratio (REINFORCE)" for r in ratios]
    figure.legend(handles, names, loc="outside lower center", ncols=len(ratios))
    return figure


def _line(axes: Axes, points: dict[int, np.ndarray], index: int) -> None:
    """Mean and range over seeds. With two or three of them, the range says more than an interval would."""
    updates = sorted(points)
    values = [points[u] * 100 for u in updates]
    means = np.array([v.mean() for v in values])
    ranges = np.array([[m - v.min(), v.max() - m] for m, v in zip(means, values, strict=True)]).T
    # A little sideways, so that ranges of several ratios can be told apart.
    x = np.array(updates) * 2 ** (0.07 * (index - 2))
    axes.errorbar(x, means, yerr=ranges, markersize=4, linewidth=1.1, elinewidth=0.7, capsize=1.5, **look(index))
