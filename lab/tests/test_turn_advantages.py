"""Advantages of turns."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain.objective import method
from policygrain_lab.turn_advantages import Gigpo, TurnReturn, TurnRewards, advantages_of_turns

few = settings(deadline=None, derandomize=True, max_examples=30)


def tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def close(x: Tensor, expected: object) -> None:
    torch.testing.assert_close(x, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14)


TURN_REWARDS = TurnRewards(
    rewards=tensor([[[1.0, 2.0], [0.0, 9.0]]]),
    mask=torch.tensor([[[1, 1], [1, 0]]]),
    states=torch.tensor([[[0, 1], [0, 0]]]),
)


def test_turn_advantages_by_hand():
    """Returns from the turns on: 3 and 2; 0. Only one response has a second turn."""
    close(TurnReturn().of_turns(TURN_REWARDS), [[[1.5, 0.0], [-1.5, 0.0]]])
    # Each reward minus that of its turn, added up: (1 − ½) + (2 − 2), and 0 − ½.
    close(TurnReturn(baseline="reward").of_turns(TURN_REWARDS), [[[0.5, 0.0], [-0.5, 0.0]]])
    discounted = TurnReturn(discount=0.5).of_turns(TURN_REWARDS)  # 1 + 2/2 = 2, and 0
    close(discounted, [[[1.0, 0.0], [-1.0, 0.0]]])
    close(Gigpo(weight=2.0).of_turns(TURN_REWARDS), [[[1.5 + 2 * 1.5, 1.5], [-1.5 + 2 * -1.5, 0.0]]])
    # An advantage of responses is that of all their turns.
    close(advantages_of_turns(method("dr_grpo"), TURN_REWARDS), [[[1.5, 1.5], [-1.5, 0.0]]])


@pytest.mark.parametrize(
    "advantage", [{"name": "turn_return"}, {"name": "turn_return", "baseline": "reward"}, "gigpo", "dr_grpo"]
)
def test_rewards_of_turns_that_are_not_there_have_no_influence(advantage):
    with_nan = TURN_REWARDS.rewards.masked_fill(TURN_REWARDS.mask == 0, torch.nan)
    ours = method("grpo", advantage=advantage)
    close(advantages_of_turns(ours, replace(TURN_REWARDS, rewards=with_nan)), advantages_of_turns(ours, TURN_REWARDS))


@few
@given(rewards=st.lists(st.lists(st.integers(-4, 4).map(float), min_size=3, max_size=3), min_size=1, max_size=3))
def test_with_one_turn_the_advantage_of_a_turn_is_that_of_the_response(rewards):
    """All begin in the same state, so GiGPO counts the same advantage twice."""
    for std, name in ((False, "dr_grpo"), (True, "grpo")):
        whole = method(name).advantage(tensor(rewards))
        for baseline in ("return", "reward"):
            turn = method("grpo", advantage={"name": "turn_return", "baseline": baseline, "std": std})
            torch.testing.assert_close(turn.advantage(tensor(rewards)), whole)
        twice = method("grpo", advantage={"name": "gigpo", "std": std}).advantage(tensor(rewards))
        torch.testing.assert_close(twice, 2 * whole)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("std", "fnorm"), [(False, "none"), (True, "std")])
def test_gigpo_is_trinitys(seed, std, fnorm):
    """Rewards at each turn, and equal states in several turns and responses."""
    pytest.importorskip("trinity")
    from trinity.algorithm.advantage_fn.gigpo_advantage import GiGPOAdvantageFn
    from trinity.common.experience import EID, Experience

    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 3, (4, 3), generator=generator).double()
    states = torch.randint(0, 4, (4, 3), generator=generator)
    mask = torch.arange(3) < torch.randint(1, 4, (4, 1), generator=generator)
    places = mask.nonzero().tolist()
    experiences = [
        Experience(
            eid=EID(batch=0, task=0, run=i, step=k),
            tokens=torch.tensor([1, 2]),
            prompt_length=1,
            action_mask=torch.ones(1),
            info={"step_reward": float(rewards[i, k]), "env_state_hash": str(int(states[i, k]))},
        )
        for i, k in places
    ]
    processed, _ = GiGPOAdvantageFn(omega=0.7, gamma=0.9, fnorm=fnorm).process(experiences)
    turns = TurnRewards(rewards.unsqueeze(0), mask.long().unsqueeze(0), states.unsqueeze(0))
    ours = Gigpo(weight=0.7, discount=0.9, std=std).of_turns(turns)[0]
    for (i, k), experience in zip(places, processed, strict=True):
        assert float(experience.advantages) == pytest.approx(float(ours[i, k]), abs=1e-5), (i, k)
