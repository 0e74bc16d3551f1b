"""Tables on turns: of exact cases, computed in seconds, and of the studies with a calculator, from their records."""

from __future__ import annotations

import pandas as pd
import torch

from policygrain.instruments.exact_turns import ADVANTAGES, RATIOS, agreement, signal_to_noise

from .common import (
    Side,
    areas,
    arm_of,
    block,
    compared,
    contrast,
    corrected_in_study,
    difference,
    endpoint_rows,
    files,
    steps,
    table,
)

PROBLEMS = 4
SIZES = ((4, 4), (8, 4), (12, 4), (12, 2), (12, 12))  # turns, and how many of them matter


@block("turns-agreement")
def turns_agreement() -> str:
    """Cosines of expected updates with the true gradient, on-policy and off-policy."""
    same, moved = (agreement(PROBLEMS, shift=shift) for shift in (0.0, 1.0))
    rows = [
        [ratio, *(f"{same[ratio, advantage]:.2f} / {moved[ratio, advantage]:.2f}" for advantage in ADVANTAGES)]
        for ratio in RATIOS
    ]
    return table(["ratio", *ADVANTAGES], rows)


@block("turns-noise")
def turns_noise() -> str:
    """Signal to noise, divided by that of the response's advantage."""
    rows = []
    for turns, decisions in SIZES:
        found, linear = signal_to_noise(turns, decisions, torch.Generator().manual_seed(0))
        gains = [found[name] / found["response"] for name in ("decisions", "critic")]
        numbers = (linear, gains[0], (turns / decisions) ** 0.5, gains[1], turns**0.5)
        rows.append([str(turns), str(decisions), *(f"{number:.2f}" for number in numbers)])
    header = ["turns K", "that matter m", "linear share s", "turns that matter", "ρ^(−1/2)", "exact critic", "√K"]
    return table(header, rows)


FIRST, SECOND, CHOICE, REWARDS = "turns", "turns-replicate", "turns-ranges", "turn-rewards"  # records
AGES, RATES = (16, 48), (2e-4, 4e-4)
OLD = {f"{age} steps old": {"ahead": age} for age in AGES}
GRAINS = ("token", "turn", "sequence")
PAIRS = (("turn", "token"), ("sequence", "token"), ("sequence", "turn"))
# The candidate of studies/turns-ranges.yaml that became the clip range of each ratio.
CHOSEN = {"token": "token_0.8", "turn": "turn_0.1", "sequence": "sequence_0.032"}
Pairs = list[tuple[str, str]]
Columns = dict[str, tuple[str, dict[str, float]]]  # heading → record and regime
AREA = "area, points"


def _by(pairs: Pairs, columns: Columns) -> str:
    """A row per pair of methods, a column per record and regime."""
    found = [
        corrected_in_study(record, [contrast(record, (a, regime), (b, regime)) for a, b in pairs])
        for record, regime in columns.values()
    ]
    return table([AREA, *columns], [[name(a, b), *cells] for (a, b), *cells in zip(pairs, *found, strict=True)])


def name(one: str, other: str) -> str:
    """The title of a row."""
    return f"{one} − {other}".replace("_", " ")


@block("turns-without-clip")
def without_clip() -> str:
    """Differences without a clip at the learning rate 2e-4, in each of the two sets of seeds."""
    sets = {"first": FIRST, "second": SECOND}
    columns: Columns = {f"{age}, {s} set": (r, regime) for age, regime in OLD.items() for s, r in sets.items()}
    return _by([*((name, "none") for name in GRAINS), *PAIRS], columns)


@block("turns-with-clips")
def with_clips() -> str:
    """Differences of ratios that have their own clip ranges, by age and learning rate."""
    pairs = [(f"{name}_clip", "none") for name in GRAINS] + [(f"{a}_clip", f"{b}_clip") for a, b in PAIRS]
    columns: Columns = {
        f"{age}, {rate:g}": (SECOND, {**regime, "learning_rate": rate}) for age, regime in OLD.items() for rate in RATES
    }
    return _by(pairs, columns)


@block("turns-what-clips-do")
def what_clips_do() -> str:
    """Each ratio's clip minus no clip at the learning rate 2e-4."""
    return _by([(f"{name}_clip", name) for name in GRAINS], {age: (SECOND, regime) for age, regime in OLD.items()})


@block("turns-products")
def products() -> str:
    """Products of token ratios minus geometric means and minus the token ratio, without a clip."""
    pairs = [("turn_product", "turn"), ("turn_product", "token"), ("product", "sequence"), ("product", "token")]
    return _by(pairs, {"16 steps old": (SECOND, {"ahead": 16})})


def best_rate(ratio: str, age: int) -> float:
    """The learning rate at which the chosen range of a ratio had the largest mean area in the study of candidates."""
    rates = (1e-4, *RATES)
    return max(rates, key=lambda rate: areas(CHOICE, CHOSEN[ratio], ahead=age, learning_rate=rate).mean())


@block("turns-own-rates")
def at_own_rates() -> str:
    """Differences of clipped ratios, each at the rate that other seeds, models and problems chose for it."""

    def chosen(ratio: str, age: int) -> Side:
        return f"{ratio}_clip", {"ahead": age, "learning_rate": best_rate(ratio, age)}

    found = [
        corrected_in_study(SECOND, [contrast(SECOND, chosen(a, age), chosen(b, age)) for a, b in PAIRS]) for age in AGES
    ]
    rates = {age: ", ".join(f"{ratio} {best_rate(ratio, age):g}" for ratio in GRAINS) for age in AGES}
    header = [AREA, *(f"{age} steps old ({of_age})" for age, of_age in rates.items())]
    return table(header, [[f"{name(a, b)}, clipped", *cells] for (a, b), *cells in zip(PAIRS, *found, strict=True)])


@block("turns-rounds")
def after_a_round() -> str:
    """Reward after 16 updates from one policy and one pool of rollouts, minus that of the token ratio."""
    found = files(SECOND, "rounds/seed*.json").values()
    table = pd.DataFrame([row | {"seed": record["seed"]} for record in found for row in record["rows"]])
    last = table[table["updates"] == table["updates"].max()].set_index(["method", "seed"])["reward"] * 100
    others = [name for name in last.index.unique("method") if name != "token"]
    rows = [([f"{name} − token".replace("_", " ")], [difference(last[name], last["token"])]) for name in others]
    return compared(["reward, points", "after 16 updates"], rows)


@block("turns-rewards")
def rewards_of_calls() -> str:
    """Advantages that differ in nothing else, with rewards of calls; the first row is what these rewards change."""

    def ends(method: str, **settings: float) -> tuple[pd.Series, pd.Series, pd.Series]:
        area, last = (areas(REWARDS, method, endpoint=end, ahead=0, **settings) for end in ("area", "last"))
        rows = steps(REWARDS)
        rows = rows[rows["arm"] == arm_of(REWARDS, method, ahead=0, **settings)].dropna(subset="validation_length")
        return area, last, rows.groupby("seed")["validation_length"].last()

    titles = {"turn_return": "return-to-go", "gigpo": "GiGPO", "turn_means": "rewards minus turn means"}
    with_calls = {name: ends(name, call_reward=0.2) for name in ("response", *titles)}
    pairs = {"rewards of calls − answer alone (advantage of the response)": (with_calls["response"], ends("response"))}
    for name, title in titles.items():
        pairs[f"{title} − response"] = with_calls[name], with_calls["response"]
    pairs["rewards minus turn means − return-to-go"] = with_calls["turn_means"], with_calls["turn_return"]
    rows = [(title, [difference(a, b) for a, b in zip(*pair, strict=True)]) for title, pair in pairs.items()]
    header = ["", "area, points", "last validation, points", "tokens of a response, last validation"]
    return table(header, endpoint_rows(rows))
