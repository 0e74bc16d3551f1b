"""Group-relative advantages: rewards [prompts, group] → advantages [prompts, group].

The modules of parts import no torch, so that methods are listed and checked without it; formulas use tensors' methods.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import UserError
from .part import Part, setting

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6


class Advantage(Part):
    """Advantages from the rewards of a group."""

    @abc.abstractmethod
    def __call__(self, rewards: Tensor) -> Tensor:
        """Â [prompts, group]; exactly 0 in a group of equal rewards, and in a group of one.

        A reward of NaN makes all advantages NaN that are computed with it, so that the step is refused.
        """


@dataclass(frozen=True, kw_only=True)
class Grpo(Advantage):
    """(R_i − mean_j R_j) / (std + 1e-6) over the group, sample (n−1) standard deviation. GRPO (2402.03300)."""

    name: Literal["grpo"] = "grpo"

    def __call__(self, rewards: Tensor) -> Tensor:
        if rewards.shape[1] < 2:
            return _centred(rewards)
        return _centred(rewards) / (rewards.std(1, keepdim=True) + EPSILON)


@dataclass(frozen=True, kw_only=True)
class DrGrpo(Advantage):
    """R_i − mean_j R_j over the group. Dr. GRPO (2503.20783)."""

    name: Literal["dr_grpo"] = "dr_grpo"

    def __call__(self, rewards: Tensor) -> Tensor:
        return _centred(rewards)


@dataclass(frozen=True, kw_only=True)
class Rloo(Advantage):
    """R_i − mean_{j≠i} R_j over the others of the group: leave-one-out. RLOO (2402.14740)."""

    name: Literal["rloo"] = "rloo"

    def __call__(self, rewards: Tensor) -> Tensor:
        size = rewards.shape[1]
        return _centred(rewards) * (size / (size - 1) if size > 1 else 0.0)


@dataclass(frozen=True, kw_only=True)
class BatchStd(Advantage):
    """(R_i − mean_j R_j) / (std + 1e-6): the mean of the group, the sample standard deviation of the batch.

    ``std_of: rewards`` is LitePPO (2508.08221), TRL's `scale_rewards="batch"`; ``advantages`` is REINFORCE++-baseline
    (2501.03262), whose implementations weight responses by their tokens; here all responses have the same weight.
    """

    name: Literal["batch_std"] = "batch_std"
    std_of: Literal["rewards", "advantages"] = setting(
        "rewards", "values of the standard deviation: the rewards, or the rewards minus their groups' means"
    )

    def __call__(self, rewards: Tensor) -> Tensor:
        centred = _centred(rewards)
        if rewards.numel() < 2:
            return centred
        return centred / ((rewards if self.std_of == "rewards" else centred).std() + EPSILON)


@dataclass(frozen=True, kw_only=True)
class MaxRl(Advantage):
    """(R_i − mean_j R_j) / mean_j R_j, for rewards that are not negative; 0 without a success. MaxRL (2602.02710).

    With rewards of 0 and 1 its expected gradient is that of the truncated log-likelihood of a success: a prompt with
    success rate p has the weight (1 − (1 − p)^(G−1)) / p. UserError for a negative reward, because the mean could then
    be close to 0, and advantages arbitrarily large.
    """

    name: Literal["maxrl"] = "maxrl"

    def __call__(self, rewards: Tensor) -> Tensor:
        if (rewards < 0).any():
            raise UserError(
                f"advantage maxrl: a reward is {float(rewards.min()):g}; rewards must be 0 or more, because it divides "
                "by their mean. Use dr_grpo, or add a constant (an overlong_buffer subtracts up to 1)."
            )
        mean = rewards.mean(1, keepdim=True)
        return (_centred(rewards) / mean).masked_fill(mean <= 0, 0.0)


def _centred(rewards: Tensor) -> Tensor:
    """R_i − mean_j R_j; exactly 0 in a group of equal rewards, whose mean may be rounded."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    # In double precision: where rewards are large and almost equal, a rounded mean would be off by their differences.
    centred = rewards.double() - rewards.double().mean(1, keepdim=True)
    return centred.masked_fill(equal, 0.0).to(rewards.dtype)
