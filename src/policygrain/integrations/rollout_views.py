"""What the tokens of rollouts are (sign, position, turn, length, …), and what is unusual in rollouts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .calibrate import ALIKE
from .rollout_files import Rollouts

LARGEST_SAMPLE = 1_000_000  # tokens from which quartiles are estimated
NAMED = 8  # numbers of turns or updates that are listed one by one


def views_of(rollouts: Rollouts) -> dict[str, tuple[list[str], Tensor]]:
    """Name → labels, and the number of each token's label [all tokens]."""
    tokens, mask = rollouts.tokens, rollouts.tokens["mask"]
    ends = rollouts.lengths.cumsum(0)
    starts = ends - rollouts.lengths
    first = torch.zeros_like(mask).index_fill(0, starts, True)

    def counted(which: Tensor) -> tuple[Tensor, Tensor]:
        """Of each response up to each token, and in all. [all tokens] both."""
        running = torch.cat([torch.zeros(1).long(), which.long().cumsum(0)])
        return running[1:] - rollouts.each_token(running[starts]), rollouts.each_token(running[ends] - running[starts])

    rank, length = counted(mask)
    turn = counted(mask & (first | ~mask.roll(1)))[0]
    quarter = (4 * (rank - 1) // length.clamp(min=1)).clamp(0, 3)
    views = {
        "advantage": (["negative", "0", "positive"], tokens["advantages"].sign().long() + 1),
        "position": (["1st quarter", "2nd", "3rd", "last quarter"], quarter),
        "turn": _listed(turn, mask),
        "length": quarters(length, mask),
        "probability": quarters(tokens["old_log_probs"].exp(), mask),
    }
    if "staleness" in rollouts.responses:
        views["staleness"] = _listed(rollouts.each_token(rollouts.responses["staleness"]), mask)
    if "entropy" in tokens:
        views["entropy"] = quarters(tokens["entropy"], mask)
    return {name: (labels, code.to(torch.int8)) for name, (labels, code) in views.items() if len(labels) > 1}


def _listed(values: Tensor, mask: Tensor) -> tuple[list[str], Tensor]:
    """Each value by itself if there are few, else by quarters."""
    distinct = values[mask].unique()
    if len(distinct) > NAMED:
        return quarters(values, mask)
    return [f"{value:g}" for value in distinct.tolist()], torch.searchsorted(distinct, values).clamp(
        max=len(distinct) - 1
    )


def quarters(values: Tensor, mask: Tensor) -> tuple[list[str], Tensor]:
    """Quarters of the tokens by value; fewer where many values are equal."""
    used = values[mask].double()
    edges = used[:: 1 + len(used) // LARGEST_SAMPLE].quantile(torch.tensor([0.25, 0.5, 0.75]).double()).unique()
    edges = edges[edges < used.max()]
    labels = [f"≤ {edge:.3g}" for edge in edges.tolist()]
    return [*labels, f"> {edges[-1]:.3g}" if labels else "all"], torch.bucketize(values.double(), edges)


def checks(rollouts: Rollouts) -> list[str]:
    """What is unusual in the rollouts, a sentence each."""
    tokens, responses = rollouts.tokens, rollouts.responses
    mask, old = tokens["mask"], tokens["old_log_probs"][tokens["mask"]]
    notes, log_ratio = [], tokens["log_probs"][mask] - old
    if log_ratio.abs().max() < ALIKE:
        notes.append("all ratios are 1 (one update per batch): objectives differ in aggregation and advantages alone.")
    if "group" in responses:
        sizes = responses["group"].bincount()
        if sizes.min() != sizes.max():
            notes.append(f"groups have {int(sizes.min())} to {int(sizes.max())} responses.")
    if "step" in responses and "group" in responses:
        pairs = torch.stack([responses["group"].double(), responses["step"]]).unique(dim=1).shape[1]
        if pairs > len(sizes):
            notes.append("responses of a group are in several steps, and each step is normalised by itself.")
    without = float((tokens["advantages"][mask] == 0).double().mean())
    if without > 0:
        notes.append(f"{without:.1%} of the tokens have advantage 0 and carry nothing.")
    if "top_p" in responses and (responses["top_p"] < 1).any():
        notes.append("top_p was below 1, which trainers' log-probabilities leave out: ratios read the surviving mass.")
    if off := _differs(log_ratio.clamp(max=80).exp() - 1, 0.02):
        notes.append(
            f"the mean ratio is {1 + off:.3g}, not 1 as for tokens that were sampled from the old policy: one column "
            "lacks a temperature, top-p or top-k that the other has, or responses were selected."
        )
    if "old_entropy" in tokens and (off := _differs(-old - tokens["old_entropy"][mask], 0.05)):
        notes.append(
            f"the mean of −log π_old is {off:+.3g} from the mean old_entropy, and equal to it for tokens that are "
            "sampled from these probabilities: another temperature, top-p or top-k, or responses were selected."
        )
    return notes


def _differs(values: Tensor, least: float) -> float:
    """The mean, if it is beyond ``least`` and six standard errors from 0; else 0."""
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return mean if abs(mean) > max(least, 6 * error) else 0.0
