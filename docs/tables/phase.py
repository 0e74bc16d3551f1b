"""Tables of the phase map, from its record: effects by regime, and which logged metric warns of a collapse."""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr, t

from .common import ROOT, table

MAP = "phase"  # the record of the map
OLD = "phase-old"  # that of older rollouts
# What is compared in each regime: name of a column → method, and the method that it is compared with.
RATIOS = {f"{name} − none": (name, "none") for name in ("token", "block", "sequence", "product")}
CLIPS = {f"{name}: clip − no clip": (f"{name}_clip", name) for name in ("token", "block", "sequence")}
GRAINS = {f"{name} − token, clipped": (f"{name}_clip", "token_clip") for name in ("block", "sequence")}
METHODS = ("none", "token", "block", "sequence", "product", "token_clip", "block_clip", "sequence_clip")
SETS = {"phase": "map", "laptop": "laptop study"}  # record → name of its problems and initial models
REGIMES = ((48, 2e-4), (16, 8e-4))  # those that all sets have
METRICS = {
    "effective_sample_share": "effective sample share",
    "ratio_second_moment": "second moment of the ratio",
    "kl_old": "KL to the policy that sampled",
    "clip_fraction": "clip fraction",
    "gradient_norm": "gradient norm",
    "entropy": "entropy",
}
MISMATCH = ("mismatch_mean", "correction_dropped_share")
WINDOWS = (4, 8, 16, 24)  # steps
DEFAULT_AGE = {
    "phase": 0,
    "phase-old": 0,
    "mismatch": 0,
}  # `training.ahead`, which names of arms leave out; 8 in other records
Array = NDArray[np.float64]


class Run(NamedTuple):
    """A training run of the map."""

    method: str
    age: int
    rate: float
    seed: int
    area: float  # points
    first: float  # validation accuracy of the initial model
    last: float
    metrics: dict[str, Array]  # by step; NaN where a step logged none
    bits: int | None = None  # of the sampler's weights; None: the trainer's own weights

    @property
    def collapsed(self) -> bool:
        """Whether accuracy at the end is less than half of the initial model's."""
        return self.last < self.first / 2


@functools.cache
def runs(record: str = MAP) -> list[Run]:
    """All runs of a record with old rollouts, or on-policy, under their ages and learning rates."""
    found = []
    with zipfile.ZipFile(ROOT / f"docs/records/{record}.zip") as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith("/metrics.jsonl")):
            arm, seed = name.split("/")[-3:-1]
            method, *settings = arm.split("+")
            chosen = dict(setting.split("=") for setting in settings)
            rows = [json.loads(line) for line in archive.read(name).splitlines()]
            curve = np.array(
                [(r["step"], r["validation_accuracy"]) for r in rows if r.get("validation_accuracy") is not None]
            )
            area = 100 * np.trapezoid(curve[:, 1], curve[:, 0]) / (curve[-1, 0] - curve[0, 0])
            run = Run(
                method,
                int(chosen.get("ahead", DEFAULT_AGE.get(record, 8))),
                float(chosen.get("learning_rate", 2e-4)),
                int(seed.removeprefix("seed")),
                float(area),
                float(curve[0, 1]),
                float(curve[-1, 1]),
                {key: np.array([_metric(r, key) for r in rows[:-1]]) for key in (*METRICS, *MISMATCH)},
                int(chosen["sampler_bits"]) if "sampler_bits" in chosen else None,
            )
            found.append(run)
    return found


def _metric(row: dict[str, float], key: str) -> float:
    if key == "ratio_second_moment":
        return row.get("ratio_variance", np.nan) + row.get("ratio_mean", np.nan) ** 2
    if key == "clip_fraction":
        return row.get("clip_fraction_low", np.nan) + row.get("clip_fraction_high", np.nan)
    return row.get(key, np.nan)


def cells() -> list[tuple[int, float]]:
    """Age and learning rate of every regime with old rollouts."""
    return sorted({(run.age, run.rate) for run in runs() if run.age})


def areas(method: str, age: int, rate: float, record: str = MAP, bits: int | None = None) -> dict[int, float]:
    """Seed → area under the curve in points."""
    wanted = (method, age, rate, bits)
    return {run.seed: run.area for run in runs(record) if (run.method, run.age, run.rate, run.bits) == wanted}


class Difference(NamedTuple):
    """A mean difference over seeds, half of its 95% interval and its p-value (Student's t)."""

    mean: float
    half: float
    p: float


def difference(one: dict[int, float], other: dict[int, float]) -> Difference:
    """``one`` minus ``other``, paired by seed."""
    values = np.array([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
    error, free = values.std(ddof=1) / np.sqrt(len(values)), len(values) - 1
    mean = float(values.mean())
    if not error:
        return Difference(mean, 0.0, 0.0 if mean else 1.0)
    return Difference(mean, float(t.ppf(0.975, free) * error), float(2 * t.sf(abs(mean) / error, free)))


def corrected(rows: list[list[Difference]]) -> list[list[str]]:
    """Mean ± half of the interval; bold where it differs from 0 by Holm's method over all of ``rows``."""
    p = np.sort([one.p for row in rows for one in row])
    rejected = np.logical_and.accumulate(p <= 0.05 / np.arange(len(p), 0, -1))
    largest = p[rejected].max(initial=-1)
    return [
        [
            f"**{one.mean:+.1f} ± {one.half:.1f}**" if one.p <= largest else f"{one.mean:+.1f} ± {one.half:.1f}"
            for one in row
        ]
        for row in rows
    ]


def _by_regime(columns: dict[str, tuple[str, str]]) -> list[list[Difference]]:
    return [[difference(areas(a, *cell), areas(b, *cell)) for a, b in columns.values()] for cell in cells()]


def ratios() -> str:
    """Ratios without a clip minus none by regime, beside the accuracy without a ratio and what old rollouts cost it."""
    found = [
        [difference(areas("none", age, rate), areas("none", 0, rate)), *compared]
        for (age, rate), compared in zip(cells(), _by_regime(RATIOS), strict=True)
    ]
    rows = [
        [f"{age}", f"{rate:g}", f"{np.mean(list(areas('none', age, rate).values())):.0f}%", *shown]
        for (age, rate), shown in zip(cells(), corrected(found), strict=True)
    ]
    return table(["age", "learning rate", "none: accuracy", "none − on-policy", *RATIOS], rows)


def clips() -> str:
    """Clips by regime: of one ratio with and without, and of two ratios with each one's own."""
    columns = CLIPS | GRAINS
    shown = corrected(_by_regime(columns))
    rows = [[f"{age}", f"{rate:g}", *row] for (age, rate), row in zip(cells(), shown, strict=True)]
    return table(["age", "learning rate", *columns], rows)


def sets() -> str:
    """The differences in the two regimes that were run with several sets of problems and initial models."""
    names, found = [], []
    for age, rate in REGIMES:
        for name, (one, other) in (RATIOS | CLIPS | GRAINS).items():
            pairs = [(areas(one, age, rate, r), areas(other, age, rate, r)) for r in SETS]
            if all(a and b for a, b in pairs):
                names.append([f"{age}", f"{rate:g}", name])
                found.append([difference(a, b) for a, b in pairs])
    rows = [[*name, *shown] for name, shown in zip(names, corrected(found), strict=True)]
    counts = [f"{name}, {len(areas('none', *REGIMES[0], record))} seeds" for record, name in SETS.items()]
    return table(["age", "learning rate", "comparison", *counts], rows)


def best_rates() -> str:
    """Each method at its best learning rate by age, chosen for each seed on the other seeds; minus none, alike."""
    rates = sorted({rate for _, rate in cells()})
    labels, found = [], []
    for age in sorted({age for age, _ in cells()}):
        judged = {}
        for method in METHODS:
            by_rate = [areas(method, age, rate) for rate in rates]
            chosen = {
                seed: int(np.argmax([np.mean([a for s, a in one.items() if s != seed]) for one in by_rate]))
                for seed in by_rate[0]
            }
            judged[method] = {seed: by_rate[i][seed] for seed, i in chosen.items()}
            names = " or ".join(f"{rates[i]:g}" for i in sorted(set(chosen.values())))
            labels.append([f"{age}", method.replace("_", ", "), names, f"{np.mean(list(judged[method].values())):.1f}"])
        found += [[difference(judged[method], judged["none"])] for method in METHODS[1:]]
        clipped = [name for name in METHODS if name.endswith("_clip")]
        found += [[difference(judged[name], judged[name.removesuffix("_clip")])] for name in clipped]
    shown = iter(text for (text,) in corrected(found))
    columns: dict[tuple[str, str], list[str]] = {}
    for age in dict.fromkeys(label[0] for label in labels):
        columns |= {(age, name.replace("_", ", ")): [next(shown)] for name in METHODS[1:]}
        for name in (one for one in METHODS if one.endswith("_clip")):
            columns[age, name.replace("_", ", ")].append(next(shown))
    rows = [[*label, *columns.get((label[0], label[1]), []), "–", "–"][:6] for label in labels]
    return table(["age", "method", "best learning rate", "accuracy", "minus none", "minus without clip"], rows)


def collapses() -> str:
    """Share of runs that collapsed, by regime and method."""
    rows = []
    for age, rate in cells():
        found = [[r.collapsed for r in runs() if (r.method, r.age, r.rate) == (m, age, rate)] for m in METHODS]
        rows.append([f"{age}", f"{rate:g}", *(f"{sum(one)}" for one in found)])
    names = [name.replace("_", ", ") for name in METHODS]
    return table(["age", "learning rate", *names], rows)


def warnings() -> str:
    """How well a metric's mean over the first steps tells runs that will collapse from others (area under the ROC)."""
    old = [run for run in runs() if run.age and run.method != "none"]
    rows = []
    for key, name in METRICS.items():
        found = [_concordance(old, key, window) for window in WINDOWS]
        lower = found[-1] < 0.5
        rows.append([name, "lower" if lower else "higher", *(f"{1 - a if lower else a:.2f}" for a in found)])
    groups = _mixed(old)
    collapsed = sum(run.collapsed for group in groups for run in group)
    header = ["metric", "before a collapse it is", *(f"first {w} steps" for w in WINDOWS)]
    return table(header, rows) + (
        f"\n\nIn {len(groups)} groups of runs with the same method, age and learning rate some runs collapsed and some "
        f"did not: {collapsed} of {sum(map(len, groups))}. Runs without a ratio are left out."
    )


def _mixed(chosen: list[Run]) -> list[list[Run]]:
    """Groups of runs that differ in the seed alone, of which some collapsed and some did not."""
    groups: dict[tuple[str, int, float], list[Run]] = {}
    for run in chosen:
        groups.setdefault((run.method, run.age, run.rate), []).append(run)
    return [group for group in groups.values() if len({run.collapsed for run in group}) == 2]


def _concordance(chosen: list[Run], key: str, window: int) -> float:
    """The share of pairs, of a run that collapsed and one of its group that did not, in which the first has more."""
    more = []
    for group in _mixed(chosen):
        means = {run.seed: _mean(run.metrics[key][:window]) for run in group}
        for one in (run for run in group if run.collapsed):
            for other in (run for run in group if not run.collapsed):
                more.append((np.sign(means[one.seed] - means[other.seed]) + 1) / 2)
    return float(np.nanmean(more))


def _mean(values: Array) -> float:
    """Mean over steps that logged a value; NaN if none did."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def law() -> str:
    """How well age × learning rate orders the regimes by what old rollouts do to a run without a ratio."""
    found = [
        (age * rate, difference(areas("none", age, rate), areas("none", 0, rate)).mean, _drift(age, rate))
        for age, rate in cells()
    ]
    product, loss, drift = (np.array(column) for column in zip(*found, strict=True))
    return (
        f"Over the {len(found)} regimes, age × learning rate has a rank correlation of "
        f"{spearmanr(product, drift).statistic:+.2f} with the KL between the policy that sampled and the one that is "
        f"trained (token ratio, mean over steps), and of {spearmanr(product, loss).statistic:+.2f} with the difference "
        "of a run without a ratio from the same on-policy."
    )


def _drift(age: int, rate: float) -> float:
    """Mean KL to the policy that sampled in runs with the token ratio, over steps and seeds."""
    chosen = [r.metrics["kl_old"] for r in runs() if (r.method, r.age, r.rate) == ("token", age, rate)]
    return float(np.nanmean(np.concatenate(chosen)))


def older() -> str:
    """The study with older rollouts: area, and sampled accuracy at the end, which is secondary and not corrected."""
    columns = {
        **{f"{name} − none": (name, "none") for name in ("token", "block", "sequence")},
        "token: clip − no clip": ("token_clip", "token"),
        "block − token, clipped": ("block_clip", "token_clip"),
    }
    of_endpoint = {"area": lambda run: run.area, "at the end": lambda run: 100 * run.last}
    titles, found = [], {}
    for endpoint, value in of_endpoint.items():
        values: dict[tuple[str, int], dict[int, float]] = {}
        for run in runs(OLD):
            values.setdefault((run.method, run.age), {})[run.seed] = value(run)
        ages = sorted({age for _, age in values if age})
        titles += [[f"{age}", endpoint, f"{np.mean([*values['none', age].values()]):.0f}%"] for age in ages]
        found[endpoint] = [
            [
                difference(values["none", age], values["none", 0]),
                *(difference(values[a, age], values[b, age]) for a, b in columns.values()),
            ]
            for age in ages
        ]
    shown = corrected(found["area"]) + [
        [f"{one.mean:+.1f} ± {one.half:.1f}" for one in row] for row in found["at the end"]
    ]
    rows = [[*title, *row] for title, row in zip(titles, shown, strict=True)]
    return table(["age", "endpoint", "none: accuracy", "none − on-policy", *columns], rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "phase-ratios": ratios,
    "phase-clips": clips,
    "phase-best": best_rates,
    "phase-sets": sets,
    "phase-collapses": collapses,
    "phase-warnings": warnings,
    "phase-law": law,
    "phase-older": older,
}
