"""The style of all figures: readable in a column of a paper, in greyscale, and with colour blindness."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis.statistics import over_seeds
from ..results.reader import StudyResults
from . import SUFFIXES

matplotlib.use("Agg")

COLUMN, WIDE, FULL_PAGE = 3.3, 5.0, 7.7  # widths in inches; shrunk to a column, the text of a wide figure has 5 points
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
        "legend.fontsize": 7.5,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.linewidth": 0.4,
        "grid.alpha": 0.4,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "pdf.fonttype": 42,
        "svg.hashsalt": "policygrain",  # without it, element names differ from call to call
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
    "gspo_token": "GSPO-token",
    "gmpo": "GMPO",
    "luspo": "LUSPO",
    "cispo": "CISPO",
    "vespo": "VESPO",
    "sapo": "SAPO",
    "dppo_tv": "DPPO, TV",
    "dppo_kl": "DPPO, KL",
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
    "mpo_k9": "MPO, K = 9",
    "mpo_normalised": "MPO, normalised",
    "token": "token ratio",
    "block": "block ratio",
    "prefix": "prefix ratio",
    "sequence": "sequence ratio",
    "product": "product, capped",
    "prefix_own": "prefix, own gradient",
    "token_unclipped": "token, no clip",
    "block_unclipped": "block, no clip",
    "block_normalised": "block, normalised, no clip",
    "block_joint": "block, joint, no clip",
    "prefix_unclipped": "prefix, no clip",
    "sequence_unclipped": "sequence, no clip",
    "sequence_published": "sequence, GSPO's band",
    "sequence_matched": "sequence, matched band",
    "poor_clip": "DAPO, poor clip",
    "mpo_joint": "MPO, joint ratio",
    "mpo_tiled": "MPO, tiled",
    "mpo_phi_0.1": "MPO, φ = 0.1",
    "mpo_phi_0.2": "MPO, φ = 0.2",
    "mpo_phi_0.4": "MPO, φ = 0.4",
    "mpo_phi_0.6": "MPO, φ = 0.6",
    "mpo_tepo": "MPO with TEPO's mask",
}


def updates_text(updates: object) -> str:
    """`1 update`, `16 updates`."""
    return f"{updates} update{'' if str(updates) == '1' else 's'}"


SETTINGS: dict[str, Callable[[str], str]] = {
    "updates_per_batch": updates_text,
    "sampling_seed": lambda _: "other sampling seeds",
    "shuffle_rewards": lambda _: "shuffled rewards",
    "learning_rate": lambda rate: f"learning rate {float(rate):g}",
}


def label(arm: str) -> str:
    """The name of an arm in figures and tables: `TEPO, 16 updates`."""
    name, *settings = arm.split("+")
    parts = [NAMES.get(name, name.replace("_", " "))]
    for setting in settings:
        key, _, value = setting.partition("=")
        parts.append(SETTINGS[key](value) if key in SETTINGS else f"{key.replace('_', ' ')} {value}")
    return ", ".join(parts)


def name_of(results: StudyResults, arm: str, among: Iterable[str] = ()) -> str:
    """The label of an arm; one whose training made no optimizer step says so.

    ``among``: the arms beside it. If some of them differ from it in the updates per batch, its own are named too.
    """
    found = label(arm)
    if "+" not in arm and any(other.startswith(f"{arm}+updates_per_batch=") for other in among):
        found += f", {updates_text(results.study.training.updates_per_batch)}"
    return found + (" (no updates)" if arm in results.untrained else "")


# So that a ratio looks the same in all figures.
RATIOS = ("token", "sequence", "block", "prefix", "none", "product")


def ratio_look(ratio: str) -> dict[str, Any]:
    """Colour, marker and line style of a ratio by its name."""
    return look(RATIOS.index(ratio) if ratio in RATIOS else len(RATIOS))


def look(index: int) -> dict[str, Any]:
    """Colour, marker and line style of the n-th arm or ratio in a figure."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def curve(
    axes: Axes,
    results: StudyResults,
    arm: str,
    metric: str,
    index: int,
    smooth: int = 1,
    scale: float = 1,
    least: float = -np.inf,
) -> None:
    """Draw the mean over seeds by step, with a band of 95%; each seed is first averaged over ``smooth`` steps.

    ``least``: smaller means and limits are drawn there, for logarithmic axes.
    """
    steps = results.steps
    if metric not in steps:  # no run of the study has made an optimizer step
        return
    rows = steps[(steps["arm"] == arm) & steps[metric].notna()].sort_values("step")
    if rows.empty:  # dynamic sampling may have dropped every group of every step
        return
    table = scale * rows.pivot(index="step", columns="seed", values=metric)
    table = table.rolling(smooth, min_periods=1, center=True).mean()
    intervals = np.array([over_seeds(v[~np.isnan(v)]) for v in table.to_numpy(dtype=float)]).clip(min=least)
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


def save(figure: Figure, out: Path, suffixes: Iterable[str] = SUFFIXES) -> None:
    """Write the figure in all formats, without a date, so that the same figure gives the same files."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix in suffixes:
        metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix, {})
        figure.savefig(out.with_name(out.name + suffix), metadata=metadata)
