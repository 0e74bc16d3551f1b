"""Variance of every ratio on the same rollouts, by the number of optimizer steps since then (after MPO)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..analysis.statistics import Interval, over_seeds
from ..errors import UserError
from ..results.reader import StudyResults
from .alike import ratio_text, resolved
from .measured import distances, estimated
from .style import ABOVE, WIDE, legend, updates_look, updates_text

SMALLEST = 1e-12


def draw(results: StudyResults) -> Figure:
    """Two panels: ratios without a clip, a line per distance; means with 95% intervals over start models."""
    methods = resolved(results.study, list(dict.fromkeys(results.estimators["estimator"])))
    free = {n: ratio_text(m) for n, m in methods.items() if m.clip.name == "none" and m.ratio.name != "none"}
    if not free:
        raise UserError("ratio_variance: `estimators.methods` has no method with a ratio and without a clip.")
    figure = Figure(figsize=(WIDE * 0.9, 2.9))
    variance, share = figure.subplots(1, 2)
    _panel(variance, results, free, "ratio_variance", _of_logs)
    _panel(share, results, free, "effective_sample_share", of_shares)
    variance.set_yscale("log")
    variance.set_title("variance of the ratio")
    share.set_title("effective sample size\n/ sample size")
    share.set_ylim(0, 1.05)
    legend(figure, loc=ABOVE)
    return figure


def _panel(axes: Axes, results: StudyResults, names: dict[str, str], metric: str, interval: object) -> None:
    steps = distances(results)
    assert callable(interval)
    for i, updates in enumerate(steps):
        values = [estimated(results, name, updates, metric).to_numpy(dtype=float) for name in names]
        points = np.array([interval(v) for v in values])
        errors = np.array([points[:, 0] - points[:, 1], points[:, 2] - points[:, 0]]).clip(min=0)
        x = np.arange(len(names)) + 0.14 * (i - (len(steps) - 1) / 2)
        style = {**updates_look(i, len(steps)), "linestyle": "", "label": f"after {updates_text(updates)}"}
        axes.errorbar(x, points[:, 0], yerr=errors, markersize=4, elinewidth=1, capsize=1.8, **style)
    axes.set_xticks(np.arange(len(names)), list(names.values()), rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.grid(axis="x", visible=False)


def _of_logs(values: NDArray[np.float64]) -> Interval:
    """Geometric mean; Student's interval of the logarithms."""
    return Interval(*(float(np.exp(v)) for v in over_seeds(np.log(values.clip(min=SMALLEST)))))


def of_shares(values: NDArray[np.float64]) -> Interval:
    """Student's interval of the logits, so that it stays within 0 and 1, and the share at their mean."""
    x = values.clip(SMALLEST, 1 - SMALLEST)
    return Interval(*(float(1 / (1 + np.exp(-v))) for v in over_seeds(np.log(x / (1 - x)))))
