"""Group-relative advantages: rewards [prompts, group] → advantages [prompts, group].

The modules of parts import no torch, so that methods are listed and checked without it; formulas use tensors' methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .part import Part

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6


class Advantage(Part):
    """Â [prompts, group] from rewards; exactly 0 in a group of equal rewards, and in a group of one.

    A reward of NaN makes all advantages NaN that are computed with it, so that the step is refused.
    """


class Grpo(Advantage, name="grpo"):
    """(R_i − mean_j R_j) / (std + 1e-6) over the group, sample (n−1) standard deviation. GRPO (2402.03300)."""

    def __call__(self, rewards: Tensor) -> Tensor:
        if rewards.shape[1] < 2:
            return _centred(rewards)
        return _centred(rewards) / (rewards.std(1, keepdim=True) + EPSILON)


class DrGrpo(Advantage, name="dr_grpo"):
    """R_i − mean_j R_j over the group. Dr. GRPO (2503.20783)."""

    def __call__(self, rewards: Tensor) -> Tensor:
        return _centred(rewards)


class Rloo(Advantage, name="rloo"):
    """R_i − mean_{j≠i} R_j over the others of the group: leave-one-out. RLOO (2402.14740)."""

    def __call__(self, rewards: Tensor) -> Tensor:
        size = rewards.shape[1]
        return _centred(rewards) * (size / (size - 1) if size > 1 else 0.0)


def _centred(rewards: Tensor) -> Tensor:
    """R_i − mean_j R_j; exactly 0 in a group of equal rewards, whose mean may be rounded."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    # In double precision: where rewards are large and almost equal, a rounded mean would be off by their differences.
    centred = rewards.double() - rewards.double().mean(1, keepdim=True)
    return centred.masked_fill(equal, 0.0).to(rewards.dtype)
