"""Clip ranges for a run: spread of the ratios of each grain on its rollouts, and effects of published ranges."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policygrain.errors import UserError
from policygrain.objective import method, method_names
from policygrain.objective.clip import LARGEST_LOG, PpoClip
from policygrain.objective.loss import effective_sample_share
from policygrain.objective.ratio import Block, PrefixRatio, Ratio, SequenceRatio, TokenRatio

from .files import ALL_0, Rollouts

GRAINS: dict[str, Ratio] = {
    "token": TokenRatio(),
    "block": Block(),
    "prefix": PrefixRatio(),
    "sequence": SequenceRatio(),
}
QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
ALIKE = 1e-6  # ratios whose logarithm is below this are 1 except for rounding
# Settings of TRL and verl with a clip range of each ratio.
PASTED = {
    "token": (
        "TRL, token ratio:      GRPOConfig(epsilon={low}, epsilon_high={high})",
        "verl, token ratio:     actor.clip_ratio_low={low} actor.clip_ratio_high={high}",
    ),
    "block": (
        "TRL, block ratio:      PolicyGrainTrainer("
        'objective=method("mpo", clip={{"low": {low}, "high": {high}}}), ...)',
    ),
    "sequence": (
        'TRL, sequence ratio:   GRPOConfig(importance_sampling_level="sequence", loss_type="grpo", '
        "epsilon={low}, epsilon_high={high})",
        "verl, sequence ratio:  actor.policy_loss.loss_mode=gspo actor.loss_agg_mode=seq-mean-token-mean "
        "actor.clip_ratio_low={low} actor.clip_ratio_high={high}",
    ),
}


class Grain(NamedTuple):
    """Ratios of one grain on the rollouts. Shares are of tokens, 0 to 1."""

    name: str
    quantiles: dict[str, float]  # of the ratio
    effective_sample_share: float
    published: dict[str, tuple[float, float]]  # preset → shares that its clip range clips below and above
    clip_range: tuple[float, float] | None  # (low, high) that clips the wanted share, of both sides together
    without_range: str | None  # the reason if no clip range does
    by_staleness: dict[str, float]  # updates → effective sample share


def measure(rollouts: Rollouts, share: float = 0.01) -> list[Grain]:
    """Measure every grain on the rollouts.

    ``share``: share of tokens, between 0 and 1, that the clip range should clip, half of it on each side. UserError if
    all ratios are 1 or all advantages 0: such rollouts do not distinguish grains or clip ranges.
    """
    if not 0 < share < 1:
        raise UserError(f"--share: must be between 0 and 1 (got {share}).")
    if (reason := without_effect(rollouts)) is not None:
        raise UserError(reason)
    return [_grain(name, part, rollouts, share) for name, part in GRAINS.items()]


def without_effect(rollouts: Rollouts) -> str | None:
    """Reason why neither grain nor clip range has an effect on the rollouts, or None."""
    batch = rollouts.batch
    if batch.log_ratio.abs().max() < ALIKE:
        return (
            "all ratios are 1: old and new log-probabilities are the same. With one update per batch and nothing "
            "sampled ahead, neither grain nor clip range has an effect; use rollouts of later updates of a batch."
        )
    return None if batch.advantages[batch.mask].any() else ALL_0


def _grain(name: str, part: Ratio, rollouts: Rollouts, share: float) -> Grain:
    batch = rollouts.batch
    log_ratio = part(batch).clamp(-LARGEST_LOG, LARGEST_LOG)
    values, sign = log_ratio[batch.mask], batch.advantages[batch.mask].sign()
    (low, why_low), (high, why_high) = (_bound(name, values, sign, share / 2, side) for side in (-1, 1))
    at = torch.tensor(QUANTILES, dtype=values.dtype)
    ratio, ages = log_ratio.exp(), rollouts.responses.get("staleness", torch.empty(0))
    by_staleness = {
        f"{age:g}": effective_sample_share(ratio, batch.mask & (ages == age).unsqueeze(1))
        for age in ages.unique().tolist()
    }
    return Grain(
        name,
        # `quantile` takes 2^24 numbers at most, and rollouts have fewer.
        {f"{q:g}": float(x.exp()) for q, x in zip(QUANTILES, values.quantile(at), strict=True)},
        effective_sample_share(ratio, batch.mask),
        {preset: _clipped(values, sign, *ends) for preset, ends in published_ranges(name).items()},
        None if why_low or why_high else (low, high),
        why_low or why_high or None,
        by_staleness,
    )


def published_ranges(grain: str) -> dict[str, tuple[float, float]]:
    """Preset → clip range (low, high), of the presets with this ratio and PPO's clip; each range once."""
    ranges: dict[str, tuple[float, float]] = {}
    for name in method_names():
        preset = method(name)
        if preset.ratio.name == grain and isinstance(preset.clip, PpoClip):
            clip_range = preset.clip.low, preset.clip.high
            if clip_range not in ranges.values():
                ranges[name] = clip_range
    return ranges


def _clipped(values: Tensor, sign: Tensor, low: float, high: float) -> tuple[float, float]:
    below = (values < math.log1p(-low)) & (sign < 0) if low < 1 else torch.zeros_like(sign, dtype=torch.bool)
    above = (values > math.log1p(high)) & (sign > 0)
    return float(below.double().mean()), float(above.double().mean())


def _bound(name: str, values: Tensor, sign: Tensor, share: float, side: int) -> tuple[float, str]:
    """(distance from 1 beyond which ``share`` of all tokens are clipped on ``side``, reason if there is none, or "").

    ``values``: log-ratios; ``sign``: signs of advantages. Only tokens whose advantage has the sign ``side`` can be
    clipped on this side.
    """
    sizes, count = (side * values)[(sign == side) & (side * values > 0)], max(1, round(share * len(values)))
    if len(sizes) > count:
        return abs(math.expm1(side * float(sizes.topk(count + 1).values[-1]))), ""
    what = "below 1 and a negative advantage" if side < 0 else "above 1 and a positive advantage"
    return math.nan, (
        f"no clip range of the {name} ratio clips {share:.2%} of the tokens on this side, since "
        f"{len(sizes) / len(values):.2%} have a ratio {what}. Choose a smaller --share, or give more rollouts."
    )


# ---- output ---------------------------------------------------------------------------------------------------------


def data(grains: list[Grain], rollouts: Rollouts, share: float) -> dict[str, Any]:
    """All measurements, as values for JSON."""
    batch = rollouts.batch
    counts = {"responses": len(batch.mask), "tokens": int(batch.mask.sum()), "share": share}
    return {**counts, "grains": {grain.name: grain._asdict() for grain in grains}}


def table(grains: list[Grain], rollouts: Rollouts, share: float) -> str:
    """A table for the terminal."""
    batch = rollouts.batch
    lines = [f"{len(batch.mask):,} responses, {int(batch.mask.sum()):,} tokens", ""]
    lines += [f"{'ratio':10}{'1%':>10}{'median':>10}{'99%':>10}{'effective':>11}   range that clips {share:.2%}"]
    for grain in grains:
        ends = [f"{grain.quantiles[key]:.4g}" for key in ("0.01", "0.5", "0.99")]
        shown = "".join(f"{end:>10}" for end in ends)
        clip_range = " / ".join(f"{end:.2g}" for end in grain.clip_range) if grain.clip_range else "none"
        lines.append(f"{grain.name:10}{shown}{grain.effective_sample_share:>11.1%}   {clip_range}")
    lines += [f"{grain.name}: {grain.without_range}" for grain in grains if grain.without_range]
    lines += ["", "Share of tokens that published clip ranges clip on these rollouts, below and above:"]
    for grain in grains:
        for preset, (below, above) in grain.published.items():
            clip_range = " / ".join(f"{end:g}" for end in published_ranges(grain.name)[preset])
            lines.append(f"  {grain.name:9} {clip_range:16} ({preset}): {below:.2%} + {above:.2%}")
    if "staleness" in rollouts.responses:
        lines += ["", "Effective sample share by updates since the rollouts:"]
        for grain in grains:
            shares = ", ".join(f"{updates}: {value:.1%}" for updates, value in grain.by_staleness.items())
            lines.append(f"  {grain.name:9} {shares}")
    return "\n".join(lines)


def to_paste(grains: list[Grain]) -> list[str]:
    """Lines with the settings of TRL, verl and a study file, for the ratios that have a clip range."""
    lines, in_study = [], []
    for name, preset in (("token", "dapo"), ("block", "mpo"), ("sequence", "gspo")):
        clip_range = next(grain for grain in grains if grain.name == name).clip_range
        if clip_range is None:
            continue
        low, high = (f"{end:.2g}" for end in clip_range)
        in_study.append(f"{preset}: {{clip: {{low: {low}, high: {high}}}}}")
        lines += [text.format(low=low, high=high) for text in PASTED[name]]
    return [*sorted(lines), f"study file:            methods: {{{', '.join(in_study)}}}"] if lines else []
