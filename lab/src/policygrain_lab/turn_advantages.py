"""Advantages of turns: rewards of turns [prompts, group, turns] → advantages of the same shape.

Importing this module adds them to the advantages that a method may have.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from policygrain.objective.part import setting
from policygrain.objective.terms import EPSILON, Advantage, DrGrpo, Grpo

if TYPE_CHECKING:
    from torch import Tensor

    from policygrain.objective import Method


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


class TurnAdvantage(Advantage):
    """Advantages of turns. A reward of a whole response is treated as that of a response with one turn."""

    def __call__(self, rewards: Tensor) -> Tensor:
        one = rewards.unsqueeze(2)
        return self.of_turns(TurnRewards(one, one.new_ones(one.shape), one.new_zeros(one.shape))).squeeze(2)

    @abc.abstractmethod
    def of_turns(self, turns: TurnRewards) -> Tensor:
        """Â [prompts, group, turns]; 0 where there is no turn."""


class TurnReturn(TurnAdvantage, name="turn_return"):
    """Rewards from the turn on, minus a mean over the responses of the group that have this turn.

    ``baseline: return``: the mean of their returns from this turn on, which depends on nothing that the turn decides.
    ``baseline: reward``: each reward minus the mean reward of its turn, added up from the turn on, as MT-GRPO
    (2505.11821) normalises. One mean is then subtracted for each turn that the response takes, so another turn costs
    the mean reward of that turn (docs/methods/newer.md).
    """

    discount: float = setting(1.0, "γ of later turns", ge=0, le=1)
    baseline: Literal["return", "reward"] = setting(
        "return", "values that are compared at a turn: returns from the turn on, or rewards of the turn"
    )
    std: bool = setting(False, "true: divided by the sample standard deviation of the compared values")

    def of_turns(self, turns: TurnRewards) -> Tensor:
        place = turns.mask.cumsum(2)
        if self.baseline == "return":
            return _compared(turns.to_go(turns.rewards, self.discount), place, turns.mask, self.std)
        return turns.to_go(_compared(turns.rewards, place, turns.mask, self.std), self.discount)


class Gigpo(TurnAdvantage, name="gigpo"):
    """Advantage of the response and, among turns from the same state, of the turn: Â_i + ω Â_k. GiGPO (2505.10978).

    Â_i is the return minus the group's mean, Â_k the return from the turn on minus its mean over turns of the group
    that began in the same state (0 if no other did). The mean of Â_i is over responses here; implementations that store
    a row per turn take it over these rows, where long responses count for more.
    """

    weight: float = setting(1.0, "ω", ge=0)
    discount: float = setting(1.0, "γ of later turns", ge=0, le=1)
    std: bool = setting(False, "true: both parts are divided by the sample standard deviation")

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


def advantages_of_turns(method: Method, turns: TurnRewards) -> Tensor:
    """[prompts, group, turns]; with an advantage of whole responses, all turns have that of the response's return."""
    if isinstance(method.advantage, TurnAdvantage):
        return method.advantage.of_turns(turns)
    advantages: Tensor = method.advantage(turns.total)
    return advantages.unsqueeze(2) * turns.mask
