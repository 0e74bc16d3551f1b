"""Group-relative advantages: by hand, and what holds for all rewards."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.objective.terms import DrGrpo, Grpo, Rloo

from ..support.batches import few

every_advantage = pytest.mark.parametrize("function", (Grpo(), DrGrpo(), Rloo()), ids=lambda part: part.name)
# Quarters are exact in floating point, and so are their sums; a spread is at least some quarters wide.
quarters = st.integers(-40, 40).map(lambda n: n / 4)
groups = st.integers(2, 8).flatmap(lambda size: st.lists(st.lists(quarters, min_size=size, max_size=size), min_size=1))


def tensor(rewards):
    return torch.tensor(rewards, dtype=torch.float64)


@every_advantage
def test_by_hand(function):
    group, other = [1.0, 0.0, 0.5, 1.0], [2.0, -1.0, 0.0, 0.0]

    def expected(r, rest):
        from_mean = r - statistics.mean([r, *rest])
        values = {"dr_grpo": from_mean, "rloo": r - statistics.mean(rest)}
        return values.get(function.name, from_mean / (statistics.stdev([r, *rest]) + 1e-6))

    by_hand = [[expected(r, g[:i] + g[i + 1 :]) for i, r in enumerate(g)] for g in (group, other)]
    torch.testing.assert_close(function(tensor([group, other])), tensor(by_hand), rtol=1e-12, atol=1e-14)


@every_advantage
@few
@given(rewards=groups, shift=quarters)
def test_a_group_sums_to_zero_and_a_shift_changes_nothing(function, rewards, shift):
    found = function(tensor(rewards))
    torch.testing.assert_close(found.sum(1), torch.zeros(len(found)).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(function(tensor(rewards) + shift), found, rtol=1e-12, atol=1e-12)


@every_advantage
@few
@given(
    reward=st.floats(-1e6, 1e6, width=32),
    size=st.integers(1, 17),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_rewards_have_exactly_zero(function, reward, size, dtype):
    rewards = torch.full((2, size), reward, dtype=dtype)
    rewards[1] = torch.arange(size) if size > 1 else 0.0  # a group beside it changes nothing
    assert function(rewards)[0].tolist() == [0.0] * size
    assert torch.isfinite(function(rewards)).all()


@every_advantage
@few
@given(place=st.integers(0, 3))
def test_a_reward_that_is_no_number_is_passed_on(function, place):
    """To its whole group, never as 0."""
    rewards = tensor([[0.0, 1.0, 2.0, 3.0]] * 2)
    rewards[0, place] = torch.nan
    found = function(rewards)
    assert found[0].isnan().all() and found[1].isfinite().all()


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
