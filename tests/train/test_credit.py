"""Advantages of turns in training: rewards, turns and states of responses with tokens of tools in them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.model.sequences import Sequences, pack
from policygrain.objective import method
from policygrain.objective.batch import turn_numbers
from policygrain.train.rollout_batch import advantages_of

CPU = torch.device("cpu")
RETURN = method("token", advantage={"name": "turn_return"})
# Prompt 1: two turns, two turns with the same call and output, and an answer at once. Prompt 2: the same text again.
RESPONSES = [[5, 9, 9, 6], [5, 9, 9, 7], [8], [5, 9, 9, 6], [8], [8]]
MASKS = [[x != 9 for x in response] for response in RESPONSES]
REWARDS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


def sequences() -> Sequences:
    return pack([[1]] * 3 + [[2]] * 3, RESPONSES, 0, CPU, MASKS)


def test_returns_are_compared_at_the_same_turn() -> None:
    by_hand = torch.tensor(
        [
            # First turns: the mean of all; second turns: the mean of the two that there are, and of one alone 0.
            [2 / 3, 0.0, 0.0, 1 / 2],
            [-1 / 3, 0.0, 0.0, -1 / 2],
            [-1 / 3, 0.0, 0.0, 0.0],
            [-1 / 3, 0.0, 0.0, 0.0],
            [-1 / 3, 0.0, 0.0, 0.0],
            [2 / 3, 0.0, 0.0, 0.0],
        ]
    )
    batch = sequences()
    assert torch.allclose(torch.where(batch.mask, advantages_of(RETURN, REWARDS, batch), 0.0), by_hand)


def test_turns_after_the_same_text_are_in_the_same_state() -> None:
    """GiGPO: the response's advantage and the turn's. Second turns of the two prompts are not compared."""
    batch, chosen = sequences(), method("token", advantage={"name": "gigpo"})
    response = REWARDS - REWARDS.mean(1, keepdim=True)
    turn = torch.where(batch.mask, advantages_of(RETURN, REWARDS, batch), 0.0)
    expected = torch.where(batch.mask, response.view(-1, 1) + turn, 0.0)
    assert torch.allclose(torch.where(batch.mask, advantages_of(chosen, REWARDS, batch), 0.0), expected)
    # With another call in the second response its second turn is in a state of its own.
    other = batch._replace(ids=batch.ids.index_put((torch.tensor([1]), torch.tensor([0])), torch.tensor(4)))
    second = advantages_of(chosen, REWARDS, other)[:2, 3]
    assert torch.allclose(second, response.view(-1)[:2])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "turn_return", "gigpo"])
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6),
    lengths=st.lists(st.integers(1, 5), min_size=6, max_size=6),
)
def test_responses_of_one_turn_have_the_advantages_of_responses(
    name: str, rewards: list[float], lengths: list[int]
) -> None:
    chosen, given_rewards = method("token", advantage={"name": name}), torch.tensor(rewards).view(2, 3)
    batch = pack([[1]] * 3 + [[2]] * 3, [[7] * length for length in lengths], 0, CPU)
    found = advantages_of(chosen, given_rewards, batch)
    found = found if found.ndim == 2 else found.unsqueeze(1).expand(batch.mask.shape)
    expected = chosen.advantages(given_rewards).view(-1, 1).expand(batch.mask.shape)
    assert torch.equal(found[batch.mask], expected[batch.mask])
    assert not turn_numbers(batch.mask).any()
