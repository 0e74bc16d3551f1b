"""Generated batches in float64 on which objectives differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..objective import Method

Fields = dict[str, Any]  # the arguments of a TokenBatch
LENGTHS = (12, 5, 9, 1, 7, 3, 8, 2)
DRIFTS = (0.0, 0.001, 0.01, 0.1, 0.3, 1.0)  # standard deviations of log-ratios: from GSPO's range to far outside PPO's
EDGES = (0.5, 0.95, 1.05)  # of the distance of a clip's bound from 1
NEAR_1, NEAR_0 = -1e-3, -40.0  # log-probabilities


def random_fields(lengths: Sequence[int], seed: int, drift: float = 0.3, width: int | None = None) -> Fields:
    """The arguments of a TokenBatch, one advantage per response; padding, on the right, has random values, too.

    ``lengths``: tokens of each response; ``drift``: standard deviation of log-ratios; ``width``: of the tensors
    (default: the longest response).
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), width or max(*lengths, 1))

    def normal(*size: int) -> Tensor:
        return torch.randn(size or shape, generator=generator, dtype=torch.float64)

    old, old_entropy = -normal().abs() - 0.01, normal().abs()
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    data = {
        "log_probs": old + drift * normal(),
        "old_log_probs": old,
        "advantages": normal(len(lengths)),
        "mask": mask,
        "entropy": old_entropy + 0.1 * normal(),
        "old_entropy": old_entropy,
        "ref_log_probs": old + drift * normal(),
        "rollout_log_probs": 1.02 * old,
        "max_length": 12,
        "groups": torch.arange(len(lengths)) // 2,
        "staleness": torch.arange(len(lengths)) % 4,
    }
    # Prediction heads predict no token after a response's last one.
    has_future = mask & (mask.cumsum(1) < mask.sum(1, keepdim=True))
    old_future = torch.where(has_future, -normal().abs(), 0.0)
    future = torch.where(has_future, old_future + drift * normal(), 0.0)
    return data | {"future_log_probs": future, "old_future_log_probs": old_future}


def batches(objective: Method | None = None) -> dict[str, Fields]:
    """Name → fields: ratios from 1 to far from it, signs, extreme probabilities, lengths and masks. Always the same.

    With an ``objective`` whose clip has bounds, one more: responses whose tokens have ratios just inside and outside.
    """
    made = {f"log-ratios of {drift:g}": random_fields(LENGTHS, seed, drift) for seed, drift in enumerate(DRIFTS)}
    for name, sign in (("positive", 1), ("negative", -1)):
        fields = random_fields(LENGTHS, 10, 0.3)
        made[f"{name} advantages"] = fields | {"advantages": sign * fields["advantages"].abs()}
    fields = random_fields(LENGTHS, 11, 0.3)
    made["large and zero advantages"] = fields | {"advantages": fields["advantages"] * torch.tensor([100.0, 0.0] * 4)}
    fields = random_fields(LENGTHS, 12, 0.3)
    column = torch.arange(fields["mask"].shape[1])
    for key in ("log_probs", "old_log_probs"):
        fields[key] = torch.where(column % 3 == 0, NEAR_0 + 0.2 * fields[key], fields[key])
        fields[key] = torch.where(column % 3 == 1, NEAR_1 + 1e-4 * fields[key], fields[key])
    made["rare and certain tokens"] = fields
    made["one token each"] = random_fields([1, 1, 1, 1], 13, 0.3)
    made["one long response"] = random_fields([60, 2, 4, 1], 14, 0.1)
    fields = random_fields(LENGTHS, 15, 0.3)
    made["masked tokens inside responses"] = fields | {"mask": fields["mask"] & (column % 4 != 2)}
    made["a response without tokens"] = random_fields([6, 0, 9, 4], 16, 0.3)
    settings = objective.clip.settings if objective else {}
    ends = [1 - (settings.get("low") or 0), 1 + (settings.get("high") or 0), settings.get("cap") or 1]
    if bounds := [end for end in ends if end not in (0, 1)]:
        inside_and_outside = [1 + (end - 1) * share for end in bounds for share in EDGES for _ in (1, -1)]
        fields = random_fields([2] * len(inside_and_outside), 17, 0.0)
        change = torch.tensor(inside_and_outside, dtype=torch.float64).clamp(min=1e-3).log()[:, None]
        signs, old = torch.tensor([1.0, -1.0] * (len(inside_and_outside) // 2)), fields["old_log_probs"] - 3
        moved = {"old_log_probs": old, "log_probs": old + change, "advantages": fields["advantages"].abs() * signs}
        made["at the bounds of its clip"] = fields | moved
    # Log-probabilities below 0, because some objectives compute with the probabilities.
    below = ("log_probs", "old_log_probs", "ref_log_probs")
    return {name: f | {key: f[key].clamp(max=NEAR_1 / 2) for key in below} for name, f in made.items()}
