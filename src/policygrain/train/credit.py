"""Advantages of the responses of a batch, or of their turns."""

from __future__ import annotations

import torch
from torch import Tensor

from ..model.sequences import Sequences
from ..objective import Method
from ..objective.advantage import TurnAdvantage, TurnRewards
from ..objective.batch import turn_numbers, turn_starts


def advantages_of(method: Method, rewards: Tensor, sequences: Sequences) -> Tensor:
    """Advantages of ``rewards`` [prompts, group]: [batch], or [batch, tokens] where a method has them for each turn."""
    if not isinstance(method.advantage, TurnAdvantage):
        return method.advantages(rewards).flatten().to(sequences.ids.device)
    by_turn = method.advantages(turn_rewards(rewards, sequences)).flatten(0, 1)
    return by_turn.to(sequences.ids.device).gather(1, turn_numbers(sequences.mask))


def turn_rewards(rewards: Tensor, sequences: Sequences) -> TurnRewards:
    """The reward of a response as that of its last turn. Turns that follow the same text are in the same state."""
    mask, group = sequences.mask.cpu(), rewards.shape[1]
    count = turn_starts(mask).sum(1, keepdim=True)
    turn = torch.arange(int(count.max()))
    states = torch.zeros(len(mask), len(turn), dtype=torch.long)
    known: dict[tuple[int, ...], int] = {}
    for row, ids in enumerate(sequences.ids.tolist()):
        for number, start in enumerate(turn_starts(mask[row : row + 1])[0].nonzero().flatten().tolist()):
            states[row, number] = known.setdefault((row // group, *ids[:start]), len(known))
    of_turn = torch.where(turn == count - 1, rewards.view(-1, 1), 0.0)
    return TurnRewards(*(x.view(*rewards.shape, -1) for x in (of_turn, (turn < count).to(rewards.dtype), states)))
