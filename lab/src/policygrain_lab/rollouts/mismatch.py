"""Mismatch of the sampling engine μ and the trainer's old policy: tokens that corrections drop, and noise or bias."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

from policygrain.analysis.statistics import over_seeds
from policygrain.objective.batch import TokenBatch
from policygrain.objective.loss import effective_sample_share, log_weights, rollout_weights
from policygrain.objective.method import Sampler

from .anatomy import UNRELATED, quarters, unrelated
from .calibrate import ALIKE
from .coefficients import CORRECTIONS, NO_ENGINE
from .files import Rollouts

LEAST = 10  # responses for an interval, and in each bin of lengths
BINS, FEWEST_BINS = 8, 5
STEEPER = 1.01  # the least slope of log π_old by log μ, or the other way round, that is no rounding
NOISE, CONSTANT = -0.5, 0.0  # slopes of the log of the spread by the log of the length
MEANING = {
    "other tokens": UNRELATED,
    "none": "engine and old policy are the same.",
    "bias": "the difference does not average out over a response. Products over long responses move far from 1, and "
    "geometric means do not come closer to 1. Compare temperature, top-p, precision and the age of the weights.",
    "temperature": "one side is the other with larger differences between tokens, as under a temperature, top-p or "
    "top-k that is on that side only. Products and geometric means move far from 1. Give both sides the same, or ask "
    "the engine for processed log-probabilities.",
    "noise": "errors of single tokens, which average out. Geometric means come closer to 1 as responses grow, products "
    "move away from 1.",
    "noise and bias": "the spread falls with the length, more slowly than that of independent errors.",
    "inconclusive": "the intervals allow both noise and bias; give more responses, of more different lengths.",
    "not enough responses": f"it needs {LEAST * FEWEST_BINS} responses, the longest fifth of which is at least twice "
    "as long as the shortest.",
}


class Correction(NamedTuple):
    """Effect of a correction on the rollouts. Shares are of tokens, if not stated otherwise."""

    dropped: float  # weight 0
    truncated: float  # weight bounded
    responses: float  # of responses: with a token that is dropped or truncated
    effective_sample_share: float  # of the weights
    weight_mean: float  # before bounds, at the correction's grain
    weight_max: float
    by_length: dict[str, float]  # tokens of the response → share that is dropped or truncated


class Mismatch(NamedTuple):
    """Engine and old policy compared; numbers are of log π_old/μ as a mean over each response.

    Intervals are 95%, over responses; None: not enough of them.
    """

    corrections: dict[str, Correction]
    mean: float
    interval: tuple[float, float] | None
    from_noise: tuple[float, float]  # means that errors of mean 0 and this size have, if μ or if π_old sampled
    slope: float | None  # of the log of the spread by the log of the length
    slope_interval: tuple[float, float] | None
    by_length: dict[str, tuple[int, float, float]]  # tokens of the response → responses, mean and spread
    scale: tuple[float | None, ...]  # slopes over tokens: of log π_old by log μ, and of log μ by log π_old
    diagnosis: str  # a key of MEANING

    def data(self) -> dict[str, Any]:
        """All measurements, as values for JSON."""
        return self._asdict() | {"corrections": {name: one._asdict() for name, one in self.corrections.items()}}


def measure(rollouts: Rollouts) -> Mismatch | None:
    """Corrections and the diagnosis on the rollouts; None where rows lack log-probabilities of the engine."""
    batch, engine = rollouts.batch, rollouts.batch.rollout_log_probs
    if engine is None:
        return None
    mask, lengths = batch.mask, batch.lengths
    labels, code = quarters(lengths, torch.ones_like(lengths, dtype=torch.bool))
    bins = {label: code == k for k, label in enumerate(labels) if (code == k).any()}
    log_ratio = log_weights(batch.old_log_probs, engine, mask, "token")
    means = log_ratio.sum(1) / lengths
    # π_old/μ has mean 1 over tokens of μ, μ/π_old over those of π_old. Errors of mean 0 raise both; below 1 is bias.
    below, above = (((sign * log_ratio).expm1() * mask).sum(1) / lengths for sign in (1, -1))
    slope = _slope(means, lengths)
    scales = [_scale(x, y, mask) for x, y in ((engine, batch.old_log_probs), (batch.old_log_probs, engine))]
    return Mismatch(
        {name: _correction(batch, engine, Sampler(**changes), bins) for name, changes in CORRECTIONS.items()},
        float(means.mean()),
        _interval(means),
        (float((means - below).mean()), float((means + above).mean())),
        None if slope is None else slope[0],
        None if slope is None else (slope[0] - slope[1], slope[0] + slope[1]),
        {k: (int(x.sum()), float(means[x].mean()), float(means[x].std(correction=0))) for k, x in bins.items()},
        (scales[0][0], scales[1][0]),
        "none"
        if log_ratio.abs().max() < ALIKE
        else "other tokens"
        if unrelated(rollouts)
        else _diagnosis([_interval(below), _interval(above)], slope, max(low for _, low in scales)),
    )


def _scale(x: Tensor, y: Tensor, mask: Tensor) -> tuple[float | None, float]:
    """The slope of ``y`` by ``x`` over tokens, and the lower end of its 95% interval over responses.

    Errors in either make both slopes at most 1; a temperature makes one of them larger.
    """
    x, y = (values.where(mask, 0.0) for values in (x, y))
    x, y = ((values - values.sum() / mask.sum()) * mask for values in (x, y))
    spread = x.square().sum()
    if len(x) < LEAST or spread < ALIKE:
        return None, 0.0
    slope = (x * y).sum() / spread
    error = ((x * (y - slope * x)).sum(1).square().sum() * len(x) / (len(x) - 1)).sqrt() / spread
    return float(slope), float(slope - stdtrit(len(x) - 1, 0.975) * error)


def _correction(batch: TokenBatch, engine: Tensor, sampler: Sampler, bins: dict[str, Tensor]) -> Correction:
    mask, has_weights = batch.mask, sampler.correction_cap is not None
    grain = sampler.correction_grain if has_weights else sampler.rejection_grain
    before = log_weights(batch.old_log_probs, engine, mask, grain).exp()
    weights = rollout_weights(batch.old_log_probs, engine, mask, sampler)
    dropped = (weights == 0) & mask
    truncated = (weights != before) & mask & ~dropped & has_weights
    changed = dropped | truncated
    return Correction(
        float(dropped.sum() / mask.sum()),
        float(truncated.sum() / mask.sum()),
        float(changed.any(1).double().mean()),
        effective_sample_share(weights, mask),
        float(before[mask].mean()),
        float(before[mask].max()),
        {label: float(changed[rows].sum() / mask[rows].sum()) for label, rows in bins.items()},
    )


def _diagnosis(excess: list[tuple[float, float] | None], slope: tuple[float, float] | None, scale: float) -> str:
    """``excess``: intervals of the mean ratio − 1, in both directions; ``slope`` with half its interval.

    ``scale``: what the larger slope over tokens is at least.
    """
    if scale > STEEPER:
        return "temperature"
    if any(interval is not None and interval[1] < 0 for interval in excess):
        return "bias"
    if slope is None:
        return "not enough responses"
    is_noise, is_constant = (abs(slope[0] - expected) <= slope[1] for expected in (NOISE, CONSTANT))
    if is_noise != is_constant:
        return "noise" if is_noise else "bias"
    return "noise and bias" if not is_noise and NOISE < slope[0] < CONSTANT else "inconclusive"


def _slope(means: Tensor, lengths: Tensor) -> tuple[float, float] | None:
    """The slope of log spread by log length, and half its 95% interval; None without enough responses and lengths.

    A least-squares line through bins with equally many responses each.
    """
    count = min(BINS, len(means) // LEAST)
    if count < FEWEST_BINS:
        return None
    parts = lengths.argsort(stable=True).tensor_split(count)
    # The variance of independent errors is proportional to the mean of 1/T.
    x = -torch.stack([(1 / lengths[part].double()).mean() for part in parts]).log()
    spread = torch.stack([means[part].std() for part in parts])
    if x[-1] - x[0] < math.log(2) or spread.min() < ALIKE:
        return None
    x, y = x - x.mean(), spread.log() - spread.log().mean()
    slope = (x @ y) / (x @ x)
    error = ((y - slope * x).square().sum() / (count - 2) / (x @ x)).sqrt()
    return float(slope), float(stdtrit(count - 2, 0.975) * error)


def _interval(values: Tensor) -> tuple[float, float] | None:
    """Student's 95% interval of the mean; None for fewer than LEAST values."""
    if len(values) < LEAST:
        return None
    _, low, high = over_seeds(values.numpy())
    return low, high


# ---- output ---------------------------------------------------------------------------------------------------------


def table(stats: Mismatch | None) -> str:
    """Tables for the terminal; without an engine's log-probabilities, a note that they are missing."""
    if stats is None:
        return f"Corrections for the engine and their diagnosis are left out: this {NO_ENGINE}."
    width = max(map(len, stats.corrections)) + 2
    head = f"{'dropped':>8}{'truncated':>11}{'responses':>11}{'effective':>11}{'mean w':>9}{'max w':>9} "
    lines = [
        "Published corrections of w = π_old/μ on these rollouts: tokens dropped and truncated, responses with such a",
        "token, effective sample share, w before its bounds; right: tokens dropped or truncated by length of response:",
        f"{'':{width}}{head}" + "".join(f"{label:>9}" for label in stats.by_length),
    ]
    for name, one in stats.corrections.items():
        shares = f"{one.dropped:>8.2%}{one.truncated:>11.2%}{one.responses:>11.1%}{one.effective_sample_share:>11.1%}"
        by_length = "".join(f"{share:>9.2%}" for share in one.by_length.values())
        lines.append(f"{name:{width}}{shares}{one.weight_mean:>9.3g}{one.weight_max:>9.3g} {by_length}")
    lines += ["", "Mean of log π_old/μ over each response, by its tokens T:"]
    for label, (count, mean, spread) in stats.by_length.items():
        lines.append(f"  {label:8}{count:>7} responses: mean {mean:+.3g}, spread {spread:.3g}")
    low, high = stats.from_noise
    lines += [
        f"  all: mean {_shown(stats.mean, stats.interval)}; noise of this size explains {low:+.3g} to {high:+.3g}",
        f"  spread ∝ T^s: s = {_shown(stats.slope, stats.slope_interval)}; independent errors −0.5, same at every T: 0",
        "  slope over tokens of log π_old by log μ, and the other way round: "
        + ", ".join("unknown" if one is None else f"{one:.3f}" for one in stats.scale)
        + "; at most 1 under noise",
        f"  {stats.diagnosis}: {MEANING[stats.diagnosis]}",
    ]
    return "\n".join(lines)


def _shown(value: float | None, interval: tuple[float, float] | None) -> str:
    shown = "unknown" if value is None else f"{value:+.3g}"
    return f"{shown} [{interval[0]:+.3g}, {interval[1]:+.3g}]" if interval else f"{shown} (not enough responses)"
