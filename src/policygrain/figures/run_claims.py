"""The figure of `policygrain claim`: the curves of both sides, and the difference of their endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..analysis.run_claims import Run, RunClaim
from .style import BLUE, ORANGE, PAGE, interval_row, look


def draw(decided: RunClaim, a: Sequence[Run], b: Sequence[Run], out: Path) -> None:
    """Draw to ``out``, a file with one of SUFFIXES."""
    figure = Figure(figsize=(PAGE, 2.2))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for side, runs, colour, line in (("a", a, BLUE, "-"), ("b", b, ORANGE, "--")):
        for run in runs:
            style = {"color": colour, "linestyle": line, "linewidth": 0.8, "alpha": 0.8}
            left.plot(run.steps, run.values, label=f"{side} ({len(runs)} runs)" if run is runs[0] else None, **style)
    left.set_xlabel("step")
    left.set_ylabel(decided.metric)
    left.legend()
    d, margin = decided.difference, decided.margin or 0.0
    right.axvspan(-margin, margin, color="#999999", alpha=0.16, linewidth=0, zorder=0)
    right.axvline(0, color="#000000", linewidth=0.7)
    shown = [v for v in (d.low, d.high, *d.values, d.mean, 0.0) if np.isfinite(v)]
    interval_row(right, 0, d.interval, look("#333333", "o"), (min(shown), max(shown)))
    right.plot(d.values, np.full(len(d.values), 0.25), "|", color="#333333")  # runs
    right.set_ylim(-0.6, 0.6)
    right.set_yticks([])
    right.locator_params(axis="x", nbins=5)
    right.set_xlabel("a − b")
    right.set_title(decided.verdict)
    figure.savefig(out)
