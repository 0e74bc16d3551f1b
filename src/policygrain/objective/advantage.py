"""Group-relative advantages: rewards [prompts, group] → advantages [prompts, group], or of each turn.

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


@dataclass(frozen=True)
class TurnRewards:
    """Rewards of the turns of responses. All tensors are [prompts, group, turns]."""

    rewards: Tensor
    mask: Tensor  # 1 where the response has this turn: its first places
    # Integers: the state in which the turn began. Turns of a group with the same number are compared by `gigpo`.
    states: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The return of each response. [prompts, group]."""
        return self.rewards.where(self.mask != 0, 0.0).sum(2)

    def to_go(self, rewards: Tensor, discount: float) -> Tensor:
        """Σ_{j≥k} γ^{j−k} r_j from each turn k on, 0 where there is no turn. [prompts, group, turns]."""
        left = rewards.where(self.mask != 0, 0.0)
        later = left.new_zeros(left.shape[:2])
        for k in reversed(range(left.shape[2])):
            later = left[..., k] + discount * later
            left[..., k] = later
        return left * self.mask


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
        "rewards",
        description="values of the standard deviation: the rewards, or the rewards minus their groups' means",
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


class TurnAdvantage(Advantage):
    """Advantages of turns. A reward of a whole response is treated as that of a response with one turn."""

    def __call__(self, rewards: Tensor) -> Tensor:
        one = rewards.unsqueeze(2)
        return self.of_turns(TurnRewards(one, one.new_ones(one.shape), one.new_zeros(one.shape))).squeeze(2)

    @abc.abstractmethod
    def of_turns(self, turns: TurnRewards) -> Tensor:
        """Â [prompts, group, turns]; 0 where there is no turn."""


@dataclass(frozen=True, kw_only=True)
class TurnReturn(TurnAdvantage):
    """Rewards from the turn on, minus a mean over the responses of the group that have this turn.

    ``baseline: return``: the mean of their returns from this turn on, which depends on nothing that the turn decides.
    ``baseline: reward``: each reward minus the mean reward of its turn, added up from the turn on, as MT-GRPO
    (2505.11821) normalises. One mean is then subtracted for each turn that the response takes, so another turn costs
    the mean reward of that turn (docs/methods/newer.md).
    """

    name: Literal["turn_return"] = "turn_return"
    discount: float = setting(1.0, ge=0, le=1, description="γ of later turns")
    baseline: Literal["return", "reward"] = setting(
        "return", description="values that are compared at a turn: returns from the turn on, or rewards of the turn"
    )
    std: bool = setting(False, description="true: divided by the sample standard deviation of the compared values")

    def of_turns(self, turns: TurnRewards) -> Tensor:
        place = turns.mask.cumsum(2)
        if self.baseline == "return":
            return _compared(turns.to_go(turns.rewards, self.discount), place, turns.mask, self.std)
        return turns.to_go(_compared(turns.rewards, place, turns.mask, self.std), self.discount)


@dataclass(frozen=True, kw_only=True)
class Gigpo(TurnAdvantage):
    """Advantage of the response and, among turns from the same state, of the turn: Â_i + ω Â_k. GiGPO (2505.10978).

    Â_i is the return minus the group's mean, Â_k the return from the turn on minus its mean over turns of the group
    that began in the same state (0 if no other did). The mean of Â_i is over responses here; implementations that store
    a row per turn take it over these rows, where long responses count for more.
    """

    name: Literal["gigpo"] = "gigpo"
    weight: float = setting(1.0, ge=0, description="ω")
    discount: float = setting(1.0, ge=0, le=1, description="γ of later turns")
    std: bool = setting(False, description="true: both parts are divided by the sample standard deviation")

    def of_turns(self, turns: TurnRewards) -> Tensor:
        if turns.states is None:
            raise ValueError("advantage gigpo: TurnRewards needs states")
        response = (Grpo() if self.std else DrGrpo())(turns.total).unsqueeze(2)
        turn = _compared(turns.to_go(turns.rewards, self.discount), turns.states, turns.mask, self.std)
        return (response + self.weight * turn) * turns.mask


def _compared(values: Tensor, numbers: Tensor, mask: Tensor, std: bool) -> Tensor:
    """Each value minus the mean of the prompt's values that have the same number; 0 outside ``mask``.

    Exactly 0 if these values are equal; with ``std``, divided by their sample standard deviation + 1e-6. All are
    [prompts, group, turns].
    """
    inside = mask != 0
    numbers = (numbers - numbers.min()).long()
    first = (numbers.new_ones(len(numbers)).cumsum(0) - 1) * (numbers.max() + 1)  # the first number of each prompt
    _, index = (numbers + first.view(-1, 1, 1))[inside].unique(return_inverse=True)
    x = values[inside].double()
    empty = x.new_zeros(int(index.max()) + 1 if len(index) else 0)

    def total(of: Tensor) -> Tensor:
        return empty.index_add(0, index, of)

    count = total(x.new_ones(x.shape))
    low, high = (empty.scatter_reduce(0, index, x, which, include_self=False) for which in ("amin", "amax"))
    centred = (x - (total(x) / count)[index]).masked_fill((low == high)[index], 0.0)
    if std:
        centred = centred / ((total(centred.square()) / (count - 1).clamp(min=1)).sqrt() + EPSILON)[index]
    return values.new_zeros(values.shape).masked_scatter(inside, centred.to(values.dtype))


def _centred(rewards: Tensor) -> Tensor:
    """R_i − mean_j R_j; exactly 0 in a group of equal rewards, whose mean may be rounded."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    # In double precision: where rewards are large and almost equal, a rounded mean would be off by their differences.
    centred = rewards.double() - rewards.double().mean(1, keepdim=True)
    return centred.masked_fill(equal, 0.0).to(rewards.dtype)
