"""Tables on turns: of exact cases, computed in seconds, and of the studies with a calculator, from their records."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import fmean
from zipfile import ZipFile

import torch

from policygrain.cases.turns import ADVANTAGES, RATIOS, agreement, signal_to_noise

from .common import ROOT, table
from .phase import Difference, areas, corrected, difference

PROBLEMS = 4
SIZES = ((4, 4), (8, 4), (12, 4), (12, 2), (12, 12))  # turns, and how many of them matter


def turns_agreement() -> str:
    """Cosines of expected updates with the true gradient, on-policy and off-policy."""
    same, moved = (agreement(PROBLEMS, shift=shift) for shift in (0.0, 1.0))
    rows = [
        [ratio, *(f"{same[ratio, advantage]:.2f} / {moved[ratio, advantage]:.2f}" for advantage in ADVANTAGES)]
        for ratio in RATIOS
    ]
    return table(["ratio", *ADVANTAGES], rows)


def turns_noise() -> str:
    """Signal to noise, divided by that of the response's advantage."""
    rows = []
    for turns, decisions in SIZES:
        found, linear = signal_to_noise(turns, decisions, torch.Generator().manual_seed(0))
        gains = [found[name] / found["response"] for name in ("decisions", "critic")]
        law = (turns / decisions) ** 0.5
        rows.append(
            [
                str(turns),
                str(decisions),
                f"{linear:.2f}",
                f"{gains[0]:.2f}",
                f"{law:.2f}",
                f"{gains[1]:.2f}",
                f"{turns**0.5:.2f}",
            ]
        )
    header = ["turns K", "that matter m", "linear share s", "turns that matter", "ρ^(−1/2)", "exact critic", "√K"]
    return table(header, rows)


FIRST, SECOND, CHOICE = "turns", "turns-replicate", "turns-ranges"  # records
AGES, RATES = (16, 48), (2e-4, 4e-4)
GRAINS = ("token", "turn", "sequence")
PAIRS = (("turn", "token"), ("sequence", "token"), ("sequence", "turn"))
# The candidate of studies/turns-ranges.yaml that became the clip range of each ratio.
CHOSEN = {"token": "token_0.8", "turn": "turn_0.1", "sequence": "sequence_0.032"}


def without_clip() -> str:
    """Differences without a clip at the learning rate 2e-4, in each of the two sets of seeds."""
    pairs = [(name, "none") for name in GRAINS] + list(PAIRS)
    rows = [
        [difference(areas(a, age, 2e-4, r), areas(b, age, 2e-4, r)) for age in AGES for r in (FIRST, SECOND)]
        for a, b in pairs
    ]
    return _table(
        [f"{a} − {b}" for a, b in pairs],
        rows,
        [f"{age} steps old, {s} set" for age in AGES for s in ("first", "second")],
    )


def with_clips() -> str:
    """Differences of ratios that have their own clip ranges, by age and learning rate."""
    pairs = [(f"{name}_clip", "none") for name in GRAINS] + [(f"{a}_clip", f"{b}_clip") for a, b in PAIRS]
    cells = [(age, rate) for age in AGES for rate in RATES]
    rows = [[difference(areas(a, *cell, SECOND), areas(b, *cell, SECOND)) for cell in cells] for a, b in pairs]
    return _table([_words(a, b) for a, b in pairs], rows, [f"{age} steps old, {rate:g}" for age, rate in cells])


def what_clips_do() -> str:
    """Each ratio's clip minus no clip at the learning rate 2e-4, and products minus geometric means."""
    pairs = [(f"{name}_clip", name) for name in GRAINS]
    rows = [[difference(areas(a, age, 2e-4, SECOND), areas(b, age, 2e-4, SECOND)) for age in AGES] for a, b in pairs]
    return _table([_words(a, b) for a, b in pairs], rows, [f"{age} steps old" for age in AGES])


def products() -> str:
    """Products of token ratios minus geometric means and minus the token ratio, without a clip."""
    pairs = (("turn_product", "turn"), ("turn_product", "token"), ("product", "sequence"), ("product", "token"))
    rows = [[difference(areas(a, 16, 2e-4, SECOND), areas(b, 16, 2e-4, SECOND))] for a, b in pairs]
    return _table([_words(a, b) for a, b in pairs], rows, ["16 steps old"])


def best_rate(ratio: str, age: int) -> float:
    """The learning rate at which the chosen range of a ratio had the largest mean area in the study of candidates."""
    return max((1e-4, *RATES), key=lambda rate: fmean(areas(CHOSEN[ratio], age, rate, CHOICE).values()))


def at_own_rates() -> str:
    """Differences of clipped ratios, each at the rate that other seeds, models and problems chose for it."""

    def chosen(ratio: str, age: int) -> dict[int, float]:
        return areas(f"{ratio}_clip", age, best_rate(ratio, age), SECOND)

    rows = [[difference(chosen(a, age), chosen(b, age)) for age in AGES] for a, b in PAIRS]
    rates = [", ".join(f"{name} {best_rate(name, age):g}" for name in GRAINS) for age in AGES]
    return _table(
        [f"{a} − {b}, clipped" for a, b in PAIRS],
        rows,
        [f"{age} steps old ({chosen_rates})" for age, chosen_rates in zip(AGES, rates, strict=True)],
    )


def after_a_round() -> str:
    """Reward after 16 updates from one policy and one pool of rollouts, minus that of the token ratio."""
    rewards: dict[str, dict[int, float]] = {}
    with ZipFile(ROOT / "docs" / "records" / f"{SECOND}.zip") as archive:
        for name in sorted(n for n in archive.namelist() if n.startswith("rounds/seed")):
            record = json.loads(archive.read(name))
            last = max(row["updates"] for row in record["rows"])
            for row in record["rows"]:
                if row["updates"] == last:
                    rewards.setdefault(row["method"], {})[record["seed"]] = 100 * row["reward"]
    others = [name for name in rewards if name != "token"]
    rows = [[difference(rewards[name], rewards["token"])] for name in others]
    return _table([_words(name, "token") for name in others], rows, ["after 16 updates"])


def _words(one: str, other: str) -> str:
    return f"{one} − {other}".replace("_", " ")


def _table(names: list[str], rows: list[list[Difference]], columns: list[str]) -> str:
    shown = [[name, *texts] for name, texts in zip(names, corrected(rows), strict=True)]
    return table(["area, points", *columns], shown)


BLOCKS: dict[str, Callable[[], str]] = {
    "turns-agreement": turns_agreement,
    "turns-noise": turns_noise,
    "turns-without-clip": without_clip,
    "turns-with-clips": with_clips,
    "turns-what-clips-do": what_clips_do,
    "turns-products": products,
    "turns-own-rates": at_own_rates,
    "turns-rounds": after_a_round,
}
