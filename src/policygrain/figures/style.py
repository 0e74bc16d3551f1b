"""The style of all figures: readable in a column of a paper, in greyscale, and with colour blindness."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..analysis.statistics import Interval, over_seeds
from ..results.reader import StudyResults

matplotlib.use("Agg")

COLUMN, PAGE = 3.4, 7.0  # width in inches of a column and of a page
# The colours of Okabe and Ito, which differ with colour blindness too; markers and dashes differ in greyscale.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
DASHES: list[Any] = [
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1)),
    (0, (7, 2)),
    "-",
]

matplotlib.rcParams.update(
    {
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "legend.fontsize": 7,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.linewidth": 0.4,
        "grid.alpha": 0.4,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "pdf.fonttype": 42,
        "savefig.dpi": 200,
    }
)

NAMES = {
    "grpo": "GRPO",
    "grpo_clip_higher": "GRPO, Clip-Higher",
    "dapo": "DAPO",
    "tepo": "TEPO",
    "tepo_v1": "TEPO v1",
    "mpo": "MPO",
    "gspo": "GSPO",
    "reinforce": "REINFORCE",
    "prefix_is": "Prefix IS",
    "dr_grpo": "Dr. GRPO",
    "start": "start model",
    "tepo_max_entropy": "TEPO, max. entropy",
    "tepo_full_kl": "TEPO, full KL",
    "tepo_lambda_0.1": "TEPO, λ = 0.1",
    "tepo_lambda_10": "TEPO, λ = 10",
    "mpo_heads": "MPO, prediction heads",
    "mpo_k2": "MPO, K = 2",
    "mpo_k3": "MPO, K = 3",
    "mpo_joint": "MPO, joint ratio",
    "mpo_tiled": "MPO, tiled",
    "mpo_phi_0.1": "MPO, φ = 0.1",
    "mpo_phi_0.4": "MPO, φ = 0.4",
    "mpo_tepo": "MPO with TEPO's mask",
}


def label(arm: str) -> str:
    """The name of an arm in figures and tables."""
    name, _, settings = arm.partition("+")
    shown = settings.replace("+", ", ").replace("_", " ")
    return NAMES.get(name, name.replace("_", " ")) + (f" ({shown})" if shown else "")


def name_of(results: StudyResults, arm: str) -> str:
    """The label of an arm; one whose training made no optimizer step says so."""
    return label(arm) + (" (no updates)" if arm in results.untrained else "")


def look(index: int) -> dict[str, Any]:
    """Colour, marker and line style of the n-th arm or ratio in a figure."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def spread(values: NDArray[np.float64]) -> Interval:
    """The mean over seeds with 95% interval; with two seeds their range, since the interval would be extremely wide."""
    if len(values) == 2:
        return Interval(float(values.mean()), float(values.min()), float(values.max()))
    return over_seeds(values)


def curve(
    axes: Axes, results: StudyResults, arm: str, metric: str, index: int, smooth: int = 1, scale: float = 1
) -> None:
    """Draw the mean over seeds by step, with `spread` as a band; each seed is first averaged over ``smooth`` steps."""
    steps = results.steps
    if metric not in steps:  # no run of the study has made an optimizer step
        return
    rows = steps[(steps["arm"] == arm) & steps[metric].notna()].sort_values("step")
    if rows.empty:  # dynamic sampling may have dropped every group of every step
        return
    table = scale * rows.pivot(index="step", columns="seed", values=metric)
    table = table.rolling(smooth, min_periods=1, center=True).mean()
    intervals = np.array([spread(v[~np.isnan(v)]) for v in table.to_numpy(dtype=float)])
    style = look(index)
    axes.plot(
        table.index,
        intervals[:, 0],
        markevery=max(1, len(table) // 8),
        markersize=3,
        linewidth=1.2,
        label=name_of(results, arm),
        **style,
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if table.shape[1] > 1:
        axes.fill_between(
            table.index, intervals[:, 1], intervals[:, 2], color=str(style["color"]), alpha=0.13, linewidth=0
        )


def shared_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend under all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def save(figure: Figure, out: Path, suffixes: Iterable[str] = (".pdf", ".png")) -> None:
    """Write the figure in all formats, without a date, so that the same figure gives the same files."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix in suffixes:
        metadata = {"CreationDate": None} if suffix == ".pdf" else {}
        figure.savefig(out.with_name(out.name + suffix), metadata=metadata)
