"""Tables and figure of docs/engines.md: studies trained by the loop and by another trainer, seed by seed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .common import areas, block, corrected, difference, endpoints, shown, steps, table

# Of the laptop study: regimes by what follows a method in an arm's name, and comparisons within a regime.
REGIMES = {"+ahead=48": "48 steps old", "+ahead=16+learning_rate=0.0008": "16 steps old, 8e-4"}
OF_RATIO = (
    *((method, "none") for method in ("token", "product", "token_clip", "block_clip", "sequence_clip")),
    *(("token_clip", "token"), ("block_clip", "token_clip"), ("sequence_clip", "token_clip")),
)
SAMPLED = ["reward_mean", "response_length_mean", "entropy_old"]  # what tells samples apart, and both trainers log
LOOP = "policygrain"


class Engine(NamedTuple):
    """Another trainer, the record of the study that it and the loop trained, and the study's methods."""

    title: str
    record: str
    methods: tuple[str, ...]


ENDPOINTS = {"area": "area", "at the end": "last"}  # title → column
MARGIN = 2  # points: within it, with the whole interval, two trainers are the same
ENGINES = {
    "trl": Engine("TRL", "engines", ("grpo", "dapo", "tepo", "mpo")),
    "verl": Engine("verl", "engines-verl", ("grpo", "mpo")),
}


def equal_steps(record: str, method: str, trainer: str) -> list[int]:
    """By seed, how many first steps have the same samples by the loop and ``trainer``."""
    rows = steps(record).set_index(["seed", "step"])
    loop, other = (rows.loc[rows["arm"] == arm, SAMPLED].fillna(0.0) for arm in (method, f"{method}+trainer={trainer}"))
    same = ((loop - other).abs() < 1e-3).all(axis=1)
    return [int(of_seed.iloc[:-1].cummin().sum()) for _, of_seed in same.groupby("seed")]  # the last is a validation


@block("engines-trl", "trl")
@block("engines-verl", "verl")
def agreement(trainer: str) -> str:
    """Area and final accuracy by trainer, their differences paired by seed, and how long samples are the same."""
    name, record, methods = ENGINES[trainer]
    rows = []
    for method in methods:
        loop, other = (endpoints(record).loc[arm] for arm in (method, f"{method}+trainer={trainer}"))
        found = {title: difference(other[end], loop[end]) for title, end in ENDPOINTS.items()}
        texts = [shown(d, 2) for d in found.values()]
        within = [title for title, d in found.items() if d.low > -MARGIN and d.high < MARGIN]
        means, counts = [f"{one['area'].mean():.1f}" for one in (loop, other)], equal_steps(record, method, trainer)
        rows.append(
            [method, *means, *texts, ", ".join(within), f"{np.median(counts):g} ({min(counts)} to {max(counts)})"]
        )
    columns = [
        "area, loop",
        f"area, {name}",
        f"{name} − loop, area",
        f"{name} − loop, at the end",
        f"within {MARGIN} points",
    ]
    return table(["method", *columns, "steps with the same samples"], rows)


@block("engines-trl-comparisons", "trl")
@block("engines-verl-comparisons", "verl")
def comparisons(trainer: str) -> str:
    """Each method minus the first, in area, by both trainers; each column is corrected by itself."""
    name, record, (first, *others) = ENGINES[trainer]
    columns = []
    for by in (LOOP, trainer):
        base, *found = (areas(record, method, trainer=by) for method in (first, *others))
        columns.append(corrected([[difference(one, base)] for one in found]))
    rows = [[f"{m} − {first}", *(text for (text,) in texts)] for m, *texts in zip(others, *columns, strict=True)]
    return table(["area, points", "by the loop", f"by {name}"], rows)


@block("engines-laptop")
def laptop() -> str:
    """Comparisons of the laptop study, trained by the loop and by TRL; each column is corrected by itself."""
    pairs = [("", (method, "grpo")) for method in ("dapo", "tepo", "mpo")]
    pairs += [(regime, pair) for regime in REGIMES for pair in OF_RATIO]

    def differences(record: str) -> list[pd.Series]:
        area = endpoints(record)["area"]
        return [area[of + regime] - area[than + regime] for regime, (of, than) in pairs]

    by_loop, by_trl = differences("earlier/laptop-loop"), differences("earlier/laptop-trl")
    columns = [corrected([[difference(d, 0 * d)] for d in found]) for found in (by_loop, by_trl)]
    shifts = [difference(trl, loop) for loop, trl in zip(by_loop, by_trl, strict=True)]
    rows = [
        [REGIMES.get(regime, "recipes"), f"{of} − {than}", loop, trl, shown(d, 2)]
        for (regime, (of, than)), (loop,), (trl,), d in zip(pairs, *columns, shifts, strict=True)
    ]
    same = sum(("**" in loop) == ("**" in trl) for _, _, loop, trl, _ in rows)
    summary = (
        f"{same} of {len(rows)} verdicts are the same. The largest mean difference between the trainers is "
        f"{max(abs(d.mean) for d in shifts):.1f} points; {sum(d.low > 0 or d.high < 0 for d in shifts)} of the "
        "intervals of these differences exclude 0."
    )
    return table(["rollouts", "area, points", "by the loop", "by TRL", "TRL − loop"], rows) + f"\n\n{summary}"


def draw(path: Path) -> None:
    """A panel per trainer and method: validation accuracy over steps, mean and 95% interval over seeds."""
    panels = [(trainer, method) for trainer, engine in ENGINES.items() for method in engine.methods]
    figure = Figure(figsize=(10.2, 2.2), layout="constrained")
    colors = {LOOP: "#0072b2", "trl": "#d55e00", "verl": "#009e73"}
    for axes, (trainer, method) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        rows = steps(ENGINES[trainer].record).dropna(subset="validation_accuracy")
        for by, style, arm in ((LOOP, "-", method), (trainer, "--", f"{method}+trainer={trainer}")):
            curves = 100 * rows[rows["arm"] == arm].pivot(index="step", columns="seed", values="validation_accuracy")
            label = "loop" if by == LOOP else ENGINES[by].title
            axes.plot(curves.index, curves.mean(axis=1), linestyle=style, color=colors[by], label=label)
            intervals = [difference(row, 0 * row) for _, row in curves.iterrows()]
            ends = [d.low for d in intervals], [d.high for d in intervals]
            axes.fill_between(curves.index, *ends, alpha=0.15, color=colors[by], linewidth=0)
        axes.set_title(f"{method.upper()}, {ENGINES[trainer].title}", fontsize=9)
        axes.set_xlabel("training step", fontsize=8)
        axes.tick_params(labelsize=7)
        if method == "grpo":
            axes.legend(fontsize=7, loc="upper left")
    figure.axes[0].set_ylabel("validation accuracy (%)", fontsize=8)
    figure.savefig(path, dpi=200)
