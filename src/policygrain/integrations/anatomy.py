"""Which tokens carry the update of each objective on a batch of rollouts, and which objectives make the same one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..objective.loss import merge_metrics
from .coefficients import Work
from .rollout_files import ALL_0
from .rollout_views import checks, views_of

SAME = 0.999  # cosine from which two updates count as the same
TAIL = 0.01  # share of tokens in the tail


class View(NamedTuple):
    """Shares of the tokens, and of Σ|c| of each objective, by ``labels``."""

    labels: list[str]
    tokens: list[float]
    update: Tensor  # [objectives, labels]; NaN without an update


@dataclass(frozen=True)
class Anatomy:
    """What was measured. Lists and rows of tensors are in the order of ``names``."""

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
            "one token has an advantage other than 0: every update is a multiple of its gradient. Give more."
        )
    codes = views_of(rollouts)
    size, tail = len(methods), max(1, round(TAIL * n_tokens))
    gram, total, top = torch.zeros(size, size).double(), torch.zeros(size).double(), torch.zeros(size, 0).double()
    sums = {name: torch.zeros(size, len(labels)).double() for name, (labels, _) in codes.items()}
    silenced, with_advantage = torch.zeros(size), torch.zeros(size)
    metrics: list[defaultdict[float, list[dict[str, float]]]] = [defaultdict(list) for _ in methods]
    for step, index, *padded, parts in work.chunks():
        inside = rollouts.padded(live, index)
        c, advantages = (x[:, inside] for x in padded)
        gram += c @ c.T
        silenced += ((c == 0) & (advantages != 0)).sum(1)
        with_advantage += (advantages != 0).sum(1)
        sizes = c.abs()
        total += sizes.sum(1)
        top = torch.cat([top, sizes], 1)
        top = top.topk(min(tail, top.shape[1])).values
        for name, (_, code) in codes.items():
            sums[name].index_add_(1, rollouts.padded(code, index)[inside].long(), sizes)
        for of_method, part in zip(metrics, parts, strict=True):
            of_method[step].append(part)
    names = list(methods)
    merged = [_mean([merge_metrics(of_step) for of_step in of_method.values()]) for of_method in metrics]
    views = {
        name: View(
            labels,
            (code[live].long().bincount(minlength=len(labels)) / n_tokens).tolist(),
            sums[name] / total.unsqueeze(1),
        )
        for name, (labels, code) in codes.items()
    }
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

    By complete linkage; objectives without an update are in neither.
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
