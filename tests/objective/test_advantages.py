"""Group-relative advantages: by hand, and what holds for all rewards."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.errors import UserError
from policygrain.objective.advantage import BatchStd, DrGrpo, Grpo, MaxRl, Rloo

from ..support.batches import few

ALL = (Grpo(), DrGrpo(), Rloo(), MaxRl(), BatchStd(), BatchStd(std_of="advantages"))
every_advantage = pytest.mark.parametrize("function", ALL, ids=lambda part: part.label)
# Quarters are exact in floating point, and so are their sums; a spread is at least some quarters wide.
quarters = st.integers(-40, 40).map(lambda n: n / 4)
groups = st.integers(2, 8).flatmap(lambda size: st.lists(st.lists(quarters, min_size=size, max_size=size), min_size=1))


def tensor(rewards):
    return torch.tensor(rewards, dtype=torch.float64)


def allowed(function, rewards):
    """Without signs for `maxrl`."""
    return tensor(rewards).abs() if function.name == "maxrl" else tensor(rewards)


@every_advantage
def test_by_hand(function):
    group, other = [1.0, 0.0, 0.5, 1.0], allowed(function, [2.0, -1.0, 0.0, 0.0]).tolist()
    centred = [r - statistics.mean(g) for g in (group, other) for r in g]
    scale = {"batch_std": [*group, *other], "batch_std, std_of advantages": centred}

    def expected(r, rest):
        mean, from_mean = statistics.mean([r, *rest]), r - statistics.mean([r, *rest])
        return {
            "dr_grpo": from_mean,
            "rloo": r - statistics.mean(rest),
            "maxrl": from_mean / mean if mean > 0 else 0.0,
        }.get(function.label, from_mean / (statistics.stdev(scale.get(function.label, [r, *rest])) + 1e-6))

    by_hand = [[expected(r, g[:i] + g[i + 1 :]) for i, r in enumerate(g)] for g in (group, other)]
    torch.testing.assert_close(function(tensor([group, other])), tensor(by_hand), rtol=1e-12, atol=1e-14)


@every_advantage
@few
@given(rewards=groups, shift=quarters)
def test_a_group_sums_to_zero_and_a_shift_changes_nothing(function, rewards, shift):
    found = function(allowed(function, rewards))
    torch.testing.assert_close(found.sum(1), torch.zeros(len(found)).double(), rtol=0, atol=1e-12)
    if function.name != "maxrl":
        torch.testing.assert_close(function(tensor(rewards) + shift), found, rtol=1e-12, atol=1e-12)


@every_advantage
@few
@given(
    reward=st.floats(-1e6, 1e6, width=32),
    size=st.integers(1, 17),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_rewards_have_exactly_zero(function, reward, size, dtype):
    rewards = torch.full((2, size), abs(reward) if function.name == "maxrl" else reward, dtype=dtype)
    rewards[1] = torch.arange(size) if size > 1 else 0.0  # a group beside it changes nothing
    assert function(rewards)[0].tolist() == [0.0] * size
    assert torch.isfinite(function(rewards)).all()


@pytest.mark.parametrize("function", ALL, ids=lambda part: part.label)
@few
@given(place=st.integers(0, 3))
def test_a_reward_that_is_no_number_is_passed_on(function, place):
    """To its whole group, never as 0; to other groups where the batch has a common scale."""
    rewards = tensor([[0.0, 1.0, 2.0, 3.0]] * 2)
    rewards[0, place] = torch.nan
    found = function(rewards)
    assert found[0].isnan().all() and (function.name == "batch_std" or found[1].isfinite().all())


@few
@given(
    size=st.integers(2, 17),
    base=st.sampled_from([0.0, 1.0, 1e3, 1e6, 16_777_215.0]),
    raised=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_normalised_advantage_is_bounded_by_the_size_of_the_group(size, base, raised, dtype):
    """|Â| ≤ (G − 1)/√G ≤ √(G − 1), also where some rewards differ from the others in the last digit."""
    rewards = torch.full((1, size), base, dtype=dtype)
    rewards[:, :raised] = torch.nextafter(rewards[:, :raised], torch.full_like(rewards[:, :raised], torch.inf))
    found = Grpo()(rewards).double()
    assert (found.abs() <= (size - 1) / size**0.5 * (1 + 1e-5)).all()


# ---- MaxRL ----------------------------------------------------------------------------------------------------------


@few
@given(rewards=groups)
def test_maxrl_refuses_negative_rewards_and_is_bounded(rewards):
    """Rewards −2 and 2.5 would have advantages of −9 and 9; without signs, at most the group's size minus one."""
    least = tensor(rewards).min()
    if least < 0:
        with pytest.raises(
            UserError, match=f"advantage maxrl: a reward is {float(least):g}; rewards must be 0 or more"
        ):
            MaxRl()(tensor(rewards))
    found = MaxRl()(tensor(rewards).abs())
    assert (found >= -1).all() and (found <= found.shape[1] - 1 + 1e-9).all()
