"""The tables of docs/engines.md, from the record of studies/engines.yaml: one study, trained by the loop and by TRL."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from matplotlib.figure import Figure

from .common import ROOT, table
from .phase import corrected, difference

METHODS = ("grpo", "dapo", "tepo", "mpo")
ARM = {"policygrain": "", "trl": "+trainer=trl"}  # trainer → what follows the method in the name of an arm
TRAINERS = tuple(ARM)
SAMPLED = ("reward_mean", "response_length_mean", "entropy")  # what tells samples apart


@functools.cache
def metrics(method: str, trainer: str) -> dict[int, list[dict[str, Any]]]:
    """Seed → the rows of metrics.jsonl."""
    rows = {}
    with ZipFile(ROOT / "docs" / "records" / "engines.zip") as archive:
        for name in archive.namelist():
            if name.startswith(f"runs/{method}{ARM[trainer]}/") and name.endswith("/metrics.jsonl"):
                seed = int(name.split("/")[2].removeprefix("seed"))
                rows[seed] = [json.loads(line) for line in archive.read(name).splitlines()]
    return rows


def curve(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Area under the curve of validation accuracy and its last value, in points."""
    x, y = np.array([(r["step"], r["validation_accuracy"]) for r in rows if "validation_accuracy" in r]).T
    return 100 * float(np.trapezoid(y, x) / (x[-1] - x[0])), 100 * float(y[-1])


def equal_steps(method: str) -> list[int]:
    """For each seed the number of first steps whose samples are the same with both trainers."""
    loop, trl = (metrics(method, trainer) for trainer in TRAINERS)
    counts = []
    for seed in sorted(loop):
        same = [
            all(abs(a.get(key, 0.0) - b.get(key, 0.0)) < 1e-3 for key in SAMPLED)
            for a, b in zip(loop[seed][:-1], trl[seed][:-1], strict=True)  # the last row is the final validation
        ]
        counts.append(same.index(False) if False in same else len(same))
    return counts


def agreement() -> str:
    """Area and final accuracy by trainer, their differences paired by seed, and how long samples are the same."""
    rows = []
    for method in METHODS:
        curves = [{seed: curve(r) for seed, r in metrics(method, trainer).items()} for trainer in TRAINERS]
        areas, ends = ([{seed: c[place] for seed, c in of.items()} for of in curves] for place in (0, 1))
        means = [f"{np.mean([*of.values()]):.1f}" for of in areas]
        texts = [f"{d.mean:+.2f} ± {d.half:.2f}" for d in (difference(of[1], of[0]) for of in (areas, ends))]
        steps = equal_steps(method)
        rows.append([method, *means, *texts, f"{np.median(steps):g} ({min(steps)} to {max(steps)})"])
    columns = ["area, loop", "area, TRL", "TRL − loop, area", "TRL − loop, at the end", "steps with the same samples"]
    return table(["method", *columns], rows)


def comparisons() -> str:
    """Differences of methods in area, by each trainer."""
    pairs = [(name, "grpo") for name in METHODS[1:]]
    columns = []
    for trainer in TRAINERS:
        areas = {name: {seed: curve(r)[0] for seed, r in metrics(name, trainer).items()} for name in METHODS}
        columns.append(corrected([[difference(areas[a], areas[b])] for a, b in pairs]))
    rows = [[f"{a} − {b}", *(text for (text,) in texts)] for (a, b), *texts in zip(pairs, *columns, strict=True)]
    return table(["area, points", "by the loop", "by TRL"], rows)


def draw(path: Path) -> None:
    """A panel per method: validation accuracy over steps by trainer, mean and range over seeds."""
    figure = Figure(figsize=(7.2, 2.1), layout="constrained")
    looks = {"policygrain": {"color": "#0072b2", "label": "loop"}, "trl": {"color": "#d55e00", "label": "TRL"}}
    for axes, method in zip(figure.subplots(1, len(METHODS), sharey=True), METHODS, strict=True):
        for trainer, style in zip(TRAINERS, ("-", "--"), strict=True):
            of_seeds = metrics(method, trainer).values()
            curves = [
                [(r["step"], 100 * r["validation_accuracy"]) for r in rows if "validation_accuracy" in r]
                for rows in of_seeds
            ]
            x, y = np.array(curves)[0, :, 0], np.array(curves)[..., 1]
            axes.plot(x, y.mean(0), linestyle=style, **looks[trainer])
            axes.fill_between(x, y.min(0), y.max(0), alpha=0.15, color=looks[trainer]["color"], linewidth=0)
        axes.set_title(method.upper(), fontsize=9)
        axes.set_xlabel("training step", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.axes[0].set_ylabel("validation accuracy (%)", fontsize=8)
    figure.axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=200)


BLOCKS: dict[str, Callable[[], str]] = {"engines-agreement": agreement, "engines-comparisons": comparisons}
