"""Tables of the phase map, from its record: effects by regime, and which logged metric warns of a collapse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from policygrain.analysis import Difference

from .common import (
    Contrast,
    areas,
    arm_of,
    block,
    compare,
    compared,
    contrast,
    corrected,
    corrected_in_study,
    difference,
    endpoints,
    shown,
    steps,
    table,
)

MAP = "phase"  # the record of the map
OLD, OLD_RATES = "phase-old", "phase-old-rates"  # those of older rollouts
# What is compared in each regime: name of a column → method, and the method that it is compared with.
RATIOS = {f"{name} − none": (name, "none") for name in ("token", "block", "sequence", "product")}
CLIPS = {f"{name}: clip − no clip": (f"{name}_clip", name) for name in ("token", "block", "sequence")}
GRAINS = {f"{name} − token, clipped": (f"{name}_clip", "token_clip") for name in ("block", "sequence")}
CLIPPED = ("token_clip", "block_clip", "sequence_clip")
METHODS = ("none", "token", "block", "sequence", "product", *CLIPPED)
AGES, RATES = (4, 16, 48), (1e-4, 2e-4, 4e-4, 8e-4)
SETS = {  # record → name of its problems and initial models, or of the processor
    "phase": "map",
    "laptop": "laptop study",
    "earlier/laptop-loop": "an earlier run of these seeds",
}
Regime = dict[str, Any]  # the training settings of a cell of the map
REGIMES: list[Regime] = [{"ahead": age, "learning_rate": rate} for age in AGES for rate in RATES]
METRICS = {
    "effective_sample_share": "effective sample share",
    "ratio_second_moment": "second moment of the ratio",
    "kl_old": "KL to the policy that sampled",
    "clip_fraction": "clip fraction",
    "gradient_norm": "gradient norm",
    "entropy": "entropy",
}
WINDOWS = (4, 8, 16, 24)  # steps


def cells(regime: Regime) -> list[str]:
    """The regime as the first cells of a row."""
    return [f"{regime['ahead']}", f"{regime['learning_rate']:g}"]


def cost_of_age(regime: Regime) -> Difference:
    """A run without a ratio minus the same on-policy."""
    return difference(areas(MAP, "none", **regime), areas(MAP, "none", **regime | {"ahead": 0}))


@block("phase-ratios")
def ratios() -> str:
    """Ratios without a clip minus none by regime, beside the accuracy without a ratio and what old rollouts cost it."""
    rows = [
        (
            [*cells(r), f"{areas(MAP, 'none', **r).mean():.0f}%"],
            [cost_of_age(r), *(compare(MAP, a, b, **r) for a, b in RATIOS.values())],
        )
        for r in REGIMES
    ]
    return compared(["age", "learning rate", "none: accuracy", "none − on-policy", *RATIOS], rows)


@block("phase-clips")
def clips() -> str:
    """Clips by regime: of one ratio with and without, and of two ratios with each one's own."""
    columns = CLIPS | GRAINS
    rows = [(cells(r), [compare(MAP, a, b, **r) for a, b in columns.values()]) for r in REGIMES]
    return compared(["age", "learning rate", *columns], rows)


@block("phase-sets")
def sets() -> str:
    """The differences in the two regimes that were run with several sets of problems and initial models."""
    regimes: list[Regime] = [{"ahead": 48, "learning_rate": 2e-4}, {"ahead": 16, "learning_rate": 8e-4}]
    chosen = [
        (r, name, pair)
        for r in regimes
        for name, pair in (RATIOS | CLIPS | GRAINS).items()
        if all(len(areas(record, method, **r)) for record in SETS for method in pair)
    ]
    columns = []
    for record in SETS:
        found = [contrast(record, (a, r), (b, r)) for r, _, (a, b) in chosen]
        columns.append([shown(d) for *_, d in found] if record == MAP else corrected_in_study(record, found))
    counts = [f"{name}, {len(areas(record, 'none', **regimes[0]))} seeds" for record, name in SETS.items()]
    rows = [[*cells(r), name, *texts] for (r, name, _), *texts in zip(chosen, *columns, strict=True)]
    return table(["age", "learning rate", "comparison", *counts], rows)


@block("phase-best")
def best_rates() -> str:
    """Each method at its best learning rate by age, chosen for each seed on the other seeds; minus none, alike."""
    names, found = [], []
    for age in AGES:
        at_best = {}
        for method in METHODS:
            by_rate = pd.DataFrame({rate: areas(MAP, method, ahead=age, learning_rate=rate) for rate in RATES})
            chosen = {seed: by_rate.drop(seed).mean().idxmax() for seed in by_rate.index}
            at_best[method] = pd.Series({seed: by_rate.loc[seed, rate] for seed, rate in chosen.items()})
            rates = " or ".join(f"{rate:g}" for rate in sorted(set(chosen.values())))
            names.append([f"{age}", method.replace("_", ", "), rates, f"{at_best[method].mean():.1f}"])
            others = dict.fromkeys(("none", method.removesuffix("_clip")))
            found.append([difference(at_best[method], at_best[other]) for other in others if other != method])
    rows = [[*name, *texts, "–", "–"][:6] for name, texts in zip(names, corrected(found), strict=True)]
    return table(["age", "method", "best learning rate", "accuracy", "minus none", "minus without clip"], rows)


@block("phase-collapses")
def collapses() -> str:
    """Share of runs that collapsed, by regime and method."""
    rows = []
    for r in REGIMES:
        ends = [(areas(MAP, m, endpoint="last", **r), areas(MAP, m, endpoint="first", **r)) for m in METHODS]
        rows.append([*cells(r), *(f"{(last < first / 2).sum()}" for last, first in ends)])
    return table(["age", "learning rate", *(name.replace("_", ", ") for name in METHODS)], rows)


@block("phase-warnings")
def warnings() -> str:
    """How well a metric's mean over the first steps tells runs that will collapse from others (area under the ROC)."""
    frame = steps(MAP)
    frame = frame[frame["arm"].str.contains(r"\+ahead=") & ~frame["arm"].str.startswith("none+")].assign(
        ratio_second_moment=lambda f: f["ratio_variance"] + f["ratio_mean"] ** 2,
        clip_fraction=lambda f: f["clip_fraction_low"] + f["clip_fraction_high"],
    )
    ends = endpoints(MAP)
    collapsed = ends["last"] < ends["first"] / 2  # less than half of the initial model's accuracy
    groups = {arm: c for arm in frame["arm"].unique() if (c := collapsed[arm]).nunique() == 2}
    means = {w: frame[frame["step"] < w].groupby(["arm", "seed"])[list(METRICS)].mean() for w in WINDOWS}
    rows = []
    for key, name in METRICS.items():
        found = [_concordance([(means[w].loc[arm, key], c) for arm, c in groups.items()]) for w in WINDOWS]
        lower = found[-1] < 0.5
        rows.append([name, "lower" if lower else "higher", *(f"{1 - a if lower else a:.2f}" for a in found)])
    header = ["metric", "before a collapse it is", *(f"first {w} steps" for w in WINDOWS)]
    return table(header, rows) + (
        f"\n\nIn {len(groups)} groups of runs with the same method, age and learning rate some runs collapsed and some "
        f"did not: {sum(map(sum, groups.values()))} of {sum(map(len, groups.values()))}. Runs without a ratio are left "
        "out."
    )


def _concordance(groups: list[tuple[pd.Series, pd.Series]]) -> float:
    """The share of pairs, of a run that collapsed and one of its group that did not, in which the first has more."""
    signs = [np.sign(np.subtract.outer(of[c].to_numpy(), of[~c].to_numpy())).ravel() for of, c in groups]
    return float(np.nanmean((np.concatenate(signs) + 1) / 2))


@block("phase-law")
def law() -> str:
    """How well age × learning rate orders the regimes by what old rollouts do to a run without a ratio."""
    drifts = steps(MAP).groupby("arm")["kl_old"].mean()
    product = [r["ahead"] * r["learning_rate"] for r in REGIMES]
    loss = [cost_of_age(r).mean for r in REGIMES]
    drift = [drifts[arm_of(MAP, "token", **r)] for r in REGIMES]
    return (
        f"Over the {len(REGIMES)} regimes, age × learning rate has a rank correlation of "
        f"{spearmanr(product, drift).statistic:+.2f} with the KL between the policy that sampled and the one that is "
        f"trained (token ratio, mean over steps), and of {spearmanr(product, loss).statistic:+.2f} with the difference "
        "of a run without a ratio from the same on-policy."
    )


@block("phase-older", OLD, (2e-4,))
@block("phase-older-rates", OLD_RATES, (1e-4, 4e-4, 8e-4))
def older(record: str, rates: Sequence[float]) -> str:
    """A study with older rollouts: area, and sampled accuracy at the end, which is secondary and not corrected."""
    pairs = {
        **{f"{name} − none": (name, "none") for name in ("token", "block", "sequence")},
        "token: clip − no clip": ("token_clip", "token"),
        "block, clip − none": ("block_clip", "none"),
        "block − token, clipped": ("block_clip", "token_clip"),
    }
    regimes: list[Regime] = [{"ahead": age, "learning_rate": rate} for rate in rates for age in (64, 128)]

    def row(endpoint: str, r: Regime) -> list[Contrast]:
        cost = contrast(record, ("none", r), ("none", r | {"ahead": 0}), endpoint)
        return [cost, *(contrast(record, (a, r), (b, r), endpoint) for a, b in pairs.values())]

    texts = iter(corrected_in_study(record, list(itertools.chain(*(row("area", r) for r in regimes)))))
    lines = []
    for endpoint, name in (("area", "area"), ("last", "at the end")):
        for r in regimes:
            accuracy = f"{areas(record, 'none', endpoint=endpoint, **r).mean():.0f}%"
            found = [next(texts) if endpoint == "area" else shown(d) for *_, d in row(endpoint, r)]
            lines.append([*cells(r), name, accuracy, *found])
    return table(["age", "learning rate", "endpoint", "none: accuracy", "none − on-policy", *pairs], lines)
