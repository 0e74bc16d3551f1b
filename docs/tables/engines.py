"""Tables and figure of docs/engines.md: studies trained by the loop and by another trainer, seed by seed."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from matplotlib.figure import Figure

from .common import ROOT, table
from .phase import corrected, difference

# Of the laptop study: regimes by what follows a method in an arm's name, and comparisons within a regime.
REGIMES = {"+ahead=48": "48 steps old", "+ahead=16+learning_rate=0.0008": "16 steps old, 8e-4"}
OF_RATIO = (
    *((method, "none") for method in ("token", "product", "token_clip", "block_clip", "sequence_clip")),
    *(("token_clip", "token"), ("block_clip", "token_clip"), ("sequence_clip", "token_clip")),
)
SAMPLED = ("reward_mean", "response_length_mean", "entropy_old")  # what tells samples apart, and both trainers log
LOOP = "policygrain"


class Engine(NamedTuple):
    """Another trainer, the record of the study that it and the loop trained, and the study's methods."""

    title: str
    record: str
    methods: tuple[str, ...]


ENGINES = {
    "trl": Engine("TRL", "engines", ("grpo", "dapo", "tepo", "mpo")),
    "verl": Engine("verl", "engines-verl", ("grpo", "mpo")),
}


def metrics(record: str, method: str, trainer: str) -> dict[int, list[dict[str, Any]]]:
    """The rows of `metrics.jsonl` by seed, of a study that varies the trainer."""
    return metrics_of(record, method if trainer == LOOP else f"{method}+trainer={trainer}")


@functools.cache
def metrics_of(record: str, arm: str) -> dict[int, list[dict[str, Any]]]:
    """The rows of `metrics.jsonl` of an arm by seed."""
    rows = {}
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        for name in archive.namelist():
            if name.startswith(f"runs/{arm}/") and name.endswith("/metrics.jsonl"):
                seed = int(name.split("/")[2].removeprefix("seed"))
                rows[seed] = [json.loads(line) for line in archive.read(name).splitlines()]
    return rows


def curve(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Area under the curve of validation accuracy, and its last value, in percent."""
    x, y = zip(*((r["step"], 100 * r["validation_accuracy"]) for r in rows if "validation_accuracy" in r), strict=True)
    return float(np.trapezoid(y, x)) / (x[-1] - x[0]), y[-1]


def equal_steps(method: str, trainer: str) -> list[int]:
    """By seed, how many first steps have the same samples by the loop and ``trainer``."""
    loop, other = (metrics(ENGINES[trainer].record, method, by) for by in (LOOP, trainer))
    counts = []
    for seed in sorted(loop):
        same = [
            all(abs(a.get(key, 0.0) - b.get(key, 0.0)) < 1e-3 for key in SAMPLED)
            for a, b in zip(loop[seed][:-1], other[seed][:-1], strict=True)  # the last row is the final validation
        ]
        counts.append(same.index(False) if False in same else len(same))
    return counts


def agreement(trainer: str) -> str:
    """Area and final accuracy by trainer, their differences paired by seed, and how long samples are the same."""
    engine, rows = ENGINES[trainer], []
    for method in engine.methods:
        runs = [metrics(engine.record, method, by) for by in (LOOP, trainer)]
        curves = [{seed: curve(r) for seed, r in of.items()} for of in runs]
        areas, ends = ([{seed: c[place] for seed, c in of.items()} for of in curves] for place in (0, 1))
        means = [f"{np.mean([*of.values()]):.1f}" for of in areas]
        texts = [f"{d.mean:+.2f} ± {d.half:.2f}" for d in (difference(of[1], of[0]) for of in (areas, ends))]
        steps = equal_steps(method, trainer)
        rows.append([method, *means, *texts, f"{np.median(steps):g} ({min(steps)} to {max(steps)})"])
    name = engine.title
    columns = ["area, loop", f"area, {name}", f"{name} − loop, area", f"{name} − loop, at the end"]
    return table(["method", *columns, "steps with the same samples"], rows)


def comparisons(trainer: str) -> str:
    """Each method minus the first, in area, by both trainers; each column is corrected by itself."""
    engine = ENGINES[trainer]
    first, *others = engine.methods
    columns = []
    for by in (LOOP, trainer):
        areas = {m: {seed: curve(r)[0] for seed, r in metrics(engine.record, m, by).items()} for m in engine.methods}
        columns.append(corrected([[difference(areas[method], areas[first])] for method in others]))
    rows = [[f"{m} − {first}", *(text for (text,) in texts)] for m, *texts in zip(others, *columns, strict=True)]
    return table(["area, points", "by the loop", f"by {engine.title}"], rows)


def laptop() -> str:
    """Comparisons of the laptop study, trained by the loop and by TRL; each column is corrected by itself."""

    def areas(record: str, arm: str) -> dict[int, float]:
        return {seed: curve(rows)[0] for seed, rows in metrics_of(record, arm).items()}

    pairs = [("", (method, "grpo")) for method in ("dapo", "tepo", "mpo")]
    pairs += [(regime, pair) for regime in REGIMES for pair in OF_RATIO]
    columns = [
        corrected([[difference(areas(record, f"{a}{r}"), areas(record, f"{b}{r}"))] for r, (a, b) in pairs])
        for record in ("laptop", "laptop-trl")
    ]
    rows, shifts = [], []
    for (regime, (of, than)), (loop,), (trl,) in zip(pairs, *columns, strict=True):
        one, two = (
            {s: areas(record, of + regime)[s] - than_area for s, than_area in areas(record, than + regime).items()}
            for record in ("laptop", "laptop-trl")
        )
        d = difference(two, one)
        rows.append([REGIMES.get(regime, "recipes"), f"{of} − {than}", loop, trl, f"{d.mean:+.2f} ± {d.half:.2f}"])
        shifts.append(d)
    same = sum(("**" in loop) == ("**" in trl) for _, _, loop, trl, _ in rows)
    summary = (
        f"{same} of {len(rows)} verdicts are the same. The largest difference between the trainers is "
        f"{max(abs(d.mean) for d in shifts):.1f} points; {sum(abs(d.mean) > d.half for d in shifts)} of the intervals "
        "of these differences exclude 0."
    )
    return table(["rollouts", "area, points", "by the loop", "by TRL", "TRL − loop"], rows) + f"\n\n{summary}"


def draw(path: Path) -> None:
    """A panel per trainer and method: validation accuracy over steps, mean and range over seeds."""
    panels = [(trainer, method) for trainer, engine in ENGINES.items() for method in engine.methods]
    figure = Figure(figsize=(10.2, 2.2), layout="constrained")
    colors = {LOOP: "#0072b2", "trl": "#d55e00", "verl": "#009e73"}
    for axes, (trainer, method) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        for by, style in ((LOOP, "-"), (trainer, "--")):
            of_seeds = metrics(ENGINES[trainer].record, method, by).values()
            curves = [
                [(r["step"], 100 * r["validation_accuracy"]) for r in rows if "validation_accuracy" in r]
                for rows in of_seeds
            ]
            x, y = np.array(curves)[0, :, 0], np.array(curves)[..., 1]
            label = "loop" if by == LOOP else ENGINES[by].title
            axes.plot(x, y.mean(0), linestyle=style, color=colors[by], label=label)
            axes.fill_between(x, y.min(0), y.max(0), alpha=0.15, color=colors[by], linewidth=0)
        axes.set_title(f"{method.upper()}, {ENGINES[trainer].title}", fontsize=9)
        axes.set_xlabel("training step", fontsize=8)
        axes.tick_params(labelsize=7)
        if method == "grpo":
            axes.legend(fontsize=7, loc="upper left")
    figure.axes[0].set_ylabel("validation accuracy (%)", fontsize=8)
    figure.savefig(path, dpi=200)


BLOCKS = {
    f"engines-{trainer}{suffix}": functools.partial(block, trainer)
    for trainer in ENGINES
    for suffix, block in (("", agreement), ("-comparisons", comparisons))
} | {"engines-laptop": laptop}
