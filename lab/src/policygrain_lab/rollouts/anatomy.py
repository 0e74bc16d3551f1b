"""Anatomy of a batch of rollouts: the weight of each token in each objective's update, and equal updates."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policygrain.errors import UserError
from policygrain.objective.loss import merge_metrics

from .calibrate import ALIKE
from .coefficients import Work
from .files import ALL_0, Rollouts

SAME = 0.999  # cosine from which two updates count as the same
TAIL = 0.01  # share of tokens in the tail
LARGEST_SAMPLE = 1_000_000  # tokens from which quartiles are estimated
NAMED = 8  # numbers of turns or updates that are listed one by one
FAR = 20.0  # log-ratio, a factor of 5e8: updates do not change the probability of a sampled token by so much
UNRELATED_DIFFERENCE, UNRELATED_CORRELATION = 0.5, 0.5  # bounds for log-probabilities of different tokens
OTHER_TOKENS = "other tokens (another tokenisation, prompt or model)"
UNRELATED = (
    "rollout_log_probs are far from, and not correlated with, old_log_probs: engine and trainer "
    "did not score the same tokens (another tokenisation, prompt or model)."
)


class View(NamedTuple):
    """A property of tokens, such as their position. By label: shares of tokens, and for each objective of Σ|c|."""

    labels: list[str]
    tokens: list[float]
    update: Tensor  # [objectives, labels]; NaN without an update
    silenced: Tensor  # [objectives, labels], share with c = 0 of the label's tokens with an advantage; NaN without any


@dataclass(frozen=True)
class Anatomy:
    """Measurements of all objectives. Lists and rows of tensors are in the order of ``names``."""

    counts: dict[str, int]
    names: list[str]
    cosines: Tensor  # [objectives, objectives], of the vectors c; NaN without an update
    views: dict[str, View]
    numbers: dict[str, list[float]]  # of each objective, see `measure`
    left_out: dict[str, str]  # objective → reason
    notes: list[str]
    gradient: dict[str, Any] | None = None  # the same cosines of gradients, with --model


def measure(work: Work) -> Anatomy:
    """The anatomy of the rollouts.

    `numbers` has for each objective the shares of tokens whose ratio is clipped below and above and, of those with an
    advantage, of tokens whose c is 0 (`silenced`); the share of Σ|c| of the 1% largest (`tail`); (Σ|c|)²/(n Σc²)
    (`effective_tokens`); the effective sample share of its ratios. UserError if no token has an update.
    """
    rollouts, methods = work.rollouts, work.methods
    live = rollouts.tokens["mask"]
    n_tokens, n_updated = int(live.sum()), int((rollouts.tokens["advantages"][live] != 0).sum())
    if not n_updated:
        raise UserError(ALL_0)
    if n_updated == 1:
        raise UserError(
            "only one token has an advantage other than 0, so every update is a multiple of its gradient. Give more "
            "rollouts."
        )
    codes = views_of(rollouts)
    size, tail = len(methods), max(1, round(TAIL * n_tokens))
    gram, total, top = torch.zeros(size, size).double(), torch.zeros(size).double(), torch.zeros(size, 0).double()
    # By view and label: Σ|c|; tokens with an advantage whose c is 0, and all with an advantage.
    sums = {name: torch.zeros(size, len(labels)).double() for name, (labels, _) in codes.items()}
    counted = {name: torch.zeros(2, size, len(labels)).double() for name, (labels, _) in codes.items()}
    metrics: list[defaultdict[float, list[dict[str, float]]]] = [defaultdict(list) for _ in methods]
    for step, index, *padded, parts in work.chunks():
        inside = rollouts.padded(live, index)
        c, advantages = (x[:, inside] for x in padded)
        gram += c @ c.T
        sizes, live_advantage = c.abs(), advantages != 0
        one_each = torch.stack([live_advantage & (c == 0), live_advantage]).double()
        total += sizes.sum(1)
        top = torch.cat([top, sizes], 1)
        top = top.topk(min(tail, top.shape[1])).values
        for name, (_, code) in codes.items():
            labels_of = rollouts.padded(code, index)[inside].long()
            sums[name].index_add_(1, labels_of, sizes)
            counted[name].index_add_(2, labels_of, one_each)
        for of_method, part in zip(metrics, parts, strict=True):
            of_method[step].append(part)
    names = list(methods)
    merged = [_mean([merge_metrics(of_step) for of_step in of_method.values()]) for of_method in metrics]
    views = {}
    for name, (labels, code) in codes.items():
        of_tokens = (code[live].long().bincount(minlength=len(labels)) / n_tokens).tolist()
        silenced, with_advantage = counted[name]
        views[name] = View(labels, of_tokens, sums[name] / total.unsqueeze(1), silenced / with_advantage)
    silenced, with_advantage = counted["advantage"].sum(2)
    numbers = {
        "clipped_low": [m["clip_fraction_low"] for m in merged],
        "clipped_high": [m["clip_fraction_high"] for m in merged],
        "silenced": (silenced / with_advantage).tolist(),
        "tail": (top.sum(1) / total).tolist(),
        "effective_tokens": (total.square() / (n_tokens * gram.diagonal())).tolist(),
        "effective_sample_share": [m["effective_sample_share"] for m in merged],
    }
    counts = {"responses": len(rollouts.lengths), "tokens": n_tokens, "steps": len(work.steps)}
    if "group" in rollouts.responses:
        counts["groups"] = int(rollouts.responses["group"].unique().numel())
    notes = [*checks(rollouts), *work.notes]
    return Anatomy(counts, names, cosines_of(gram), views, numbers, work.left_out, notes)


def cosines_of(gram: Tensor) -> Tensor:
    """Cosines from inner products; NaN where a vector is 0."""
    sizes = gram.diagonal().sqrt()
    return ((gram + gram.T) / 2 / torch.outer(sizes, sizes)).clamp(-1, 1)


def _mean(steps: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}


def clusters(cosines: Tensor, threshold: float = SAME) -> tuple[list[list[int]], list[int]]:
    """Sets of objectives any two of which have at least this cosine, largest first, and an order by likeness.

    By complete linkage; neither contains objectives without an update.
    """
    members = {i: [i] for i in range(len(cosines)) if not cosines[i, i].isnan()}
    linkage = cosines.nan_to_num(-2.0).fill_diagonal_(-2.0)
    same: list[list[int]] | None = None
    while len(members) > 1:
        place = int(linkage.argmax())
        i, j = divmod(place, len(linkage))
        if same is None and linkage[i, j] < threshold:
            same = list(members.values())
        members[i] = members[i] + members.pop(j)
        linkage[i] = linkage[:, i] = linkage[i].minimum(linkage[j])
        linkage[i, i], linkage[j], linkage[:, j] = -2.0, -2.0, -2.0
    same = list(members.values()) if same is None else same
    return sorted(same, key=len, reverse=True), [i for group in members.values() for i in group]


# ---- properties of tokens, and checks of rollouts -------------------------------------------------------------------


def views_of(rollouts: Rollouts) -> dict[str, tuple[list[str], Tensor]]:
    """Name → labels, and the number of each token's label [all tokens]."""
    tokens, mask = rollouts.tokens, rollouts.tokens["mask"]
    ends = rollouts.lengths.cumsum(0)
    starts = ends - rollouts.lengths
    first = torch.zeros_like(mask).index_fill(0, starts, True)

    def counted(which: Tensor) -> tuple[Tensor, Tensor]:
        """Number of tokens in ``which`` up to each token of its response, and in the whole response. [all tokens]."""
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
    """A label for each value if there are few values, else quarters."""
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
    """Notes on unusual properties of the rollouts, a sentence each."""
    tokens, responses = rollouts.tokens, rollouts.responses
    mask, old = tokens["mask"], tokens["old_log_probs"][tokens["mask"]]
    notes, log_ratio = [*rollouts.notes], tokens["log_probs"][mask] - old
    if log_ratio.abs().max() < ALIKE:
        notes.append("all ratios are 1 (one update per batch): objectives differ only in aggregation and advantages.")
    if "group" in responses:
        sizes = responses["group"].unique(return_counts=True)[1]
        if sizes.min() != sizes.max():
            notes.append(f"groups have {int(sizes.min())} to {int(sizes.max())} responses.")
    if "step" in responses and "group" in responses:
        pairs = torch.stack([responses["group"].double(), responses["step"]]).unique(dim=1).shape[1]
        if pairs > len(sizes):
            notes.append("responses of a group are in several steps, and each step is normalised by itself.")
    without = float((tokens["advantages"][mask] == 0).double().mean())
    if without > 0:
        notes.append(f"{without:.1%} of the tokens have advantage 0 and no gradient.")
    if "top_p" in responses and (responses["top_p"] < 1).any():
        notes.append(
            "top_p was below 1, which trainers' log-probabilities ignore: ratios include the change of the nucleus's "
            "total probability."
        )
    if off := _differs(log_ratio.clamp(max=80).exp() - 1, 0.02):
        notes.append(
            f"the mean ratio is {1 + off:.3g}, not 1 as for tokens that were sampled from the old policy: one column "
            "lacks a temperature, top-p or top-k that the other has, or is of " + OTHER_TOKENS + ", or responses were "
            "selected."
        )
    if "old_entropy" in tokens and (off := _differs(-old - tokens["old_entropy"][mask], 0.05)):
        notes.append(
            f"the mean of −log π_old is {off:+.3g} from the mean old_entropy, and equal to it for tokens that are "
            "sampled from these probabilities: another temperature, top-p or top-k, or " + OTHER_TOKENS + ", or "
            "responses were selected."
        )
    if "rollout_log_probs" in tokens and not unrelated(rollouts):
        log_weight = old - tokens["rollout_log_probs"][mask]
        # Over tokens of the denominator a mean is 1; errors of single tokens, and tokens of the other, raise it.
        for what, x in (("π_old/μ", log_weight), ("μ/π_old", -log_weight)):
            if (off := _differs(x.clamp(max=80).exp() - 1, 0.02)) < 0:
                notes.append(
                    f"the mean of {what} (μ: rollout_log_probs) is {1 + off:.3g}, and noise cannot make it less than "
                    "1: one of the two columns lacks a temperature, top-p or top-k that the other has, or is "
                    "computed with an error, or responses were selected."
                )
    for name in ("log_probs", "rollout_log_probs"):
        if name == "rollout_log_probs" and unrelated(rollouts):
            notes.append(UNRELATED)
        elif name in tokens and (far := (tokens[name] - tokens["old_log_probs"]).abs().where(mask, 0.0)).max() > FAR:
            of_responses = rollouts.each_token(torch.arange(len(rollouts.lengths)))[far > FAR].unique()
            notes.append(
                f"{name} and old_log_probs differ by up to {float(far.max()):,.4g}, by more than {FAR:g} at "
                f"{int((far > FAR).sum()):,} tokens of {len(of_responses):,} responses (first: response "
                f"{int(of_responses[0]) + 1:,}). Updates do not change the probability of a sampled token by so much: "
                f"one column is of {OTHER_TOKENS}."
            )
    return notes


def unrelated(rollouts: Rollouts) -> bool:
    """Whether the log-probabilities of the engine and of the old policy are those of different tokens.

    These are far apart in most responses and not correlated. Another temperature or older weights do not cause this.
    """
    mask, engine = rollouts.tokens["mask"], rollouts.tokens.get("rollout_log_probs")
    if engine is None:
        return False
    log_probs = torch.stack([rollouts.tokens["old_log_probs"][mask], engine[mask]]).clamp(min=-FAR)
    response = rollouts.each_token(torch.arange(len(rollouts.lengths)))[mask]
    apart = torch.zeros(len(rollouts.lengths)).double().index_add(0, response, (log_probs[0] - log_probs[1]).abs())
    if (apart / response.bincount(minlength=len(apart))).median() < UNRELATED_DIFFERENCE:
        return False
    return not torch.corrcoef(log_probs)[0, 1] >= UNRELATED_CORRELATION  # NaN if a column is constant


def _differs(values: Tensor, least: float) -> float:
    """The mean, if it is beyond ``least`` and six standard errors from 0; else 0."""
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return mean if abs(mean) > max(least, 6 * error) else 0.0
