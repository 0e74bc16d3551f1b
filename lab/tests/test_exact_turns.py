"""Episodes of turns: probabilities, the hidden bonus for another turn, grains, and the law of signal and noise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.objective.batch import turn_numbers
from policygrain_lab.exact import turns
from policygrain_lab.exact.turns import RATIOS, estimator, exact_gradient, expected_update

some = settings(deadline=None, derandomize=True, max_examples=10)
seeds = st.integers(0, 1000)
UNBIASED = ("of the response", "return from the turn on", "gigpo")
# Ratios whose tokens have no gradient of other turns.
OF_A_TURN = [ratio for ratio in RATIOS if ratio != "response, geometric mean"]


def episodes_of(seed, moved=0.0):
    """Two turns with probabilities of ¼, ½ and ¾, and the logits of a policy that has moved from the behaviour's."""
    generator = torch.Generator().manual_seed(seed)
    episodes = turns.group(turns.problem(2, generator), torch.randint(1, 4, (2, 2, 2), generator=generator), 4)
    return episodes, episodes.behaviour + moved * torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)


def scaled(advantage, update):
    """GiGPO adds two advantages, of which each has the true gradient."""
    return update / 2 if advantage == "gigpo" else update


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@some
@given(seed=seeds)
def test_a_group_has_every_episode_as_often_as_it_is_sampled(seed):
    """Of the 256 rows, those of an episode are ¼ (the observations) × its probability; the second turn is as likely."""
    episodes, _ = episodes_of(seed)
    chance = (turns.log_probs(episodes.behaviour, episodes) * episodes.mask).sum(1).exp()
    seen = episodes.tokens * (
        episodes.mask | (torch.arange(6) == 0) | ((torch.arange(6) == 3) & (episodes.mask[:, 4:5] > 0))
    )
    rows, index, count = seen.unique(dim=0, return_inverse=True, return_counts=True)
    observations = torch.where(episodes.mask[:, 4] > 0, 4, 2)
    same(count[index].double() / 256, chance / observations)
    assert len(rows) == 2 * 2 + 2 * 2 * 2 * 2
    assert (turn_numbers(episodes.mask).amax(1) + 1).tolist() == episodes.rewards.mask[0].sum(1).tolist()


@some
@given(seed=seeds)
def test_normalising_rewards_by_turn_is_a_bonus_for_stopping(seed):
    """The expected update is the true gradient minus the mean reward of each turn × the gradient of taking it."""
    episodes, logits = episodes_of(seed)
    taken, rewards = episodes.rewards.mask[0].double(), episodes.rewards.rewards[0]
    exact = exact_gradient(logits, episodes)
    bonus = -exact_gradient(logits, episodes, taken @ ((rewards * taken).sum(0) / taken.sum(0)))
    for ratio in OF_A_TURN:
        update = expected_update(estimator(ratio, "rewards minus their turns' means"), logits, episodes)
        same(update, exact + bonus)
    # Only decisions before the last turn are changed; rewards are positive, so that another turn looks worse.
    same(bonus[1], 0 * bonus[1])
    same(bonus[0, :, 0], 0 * bonus[0, :, 0])
    assert (bonus[0, :, 1] < 0).all()


@some
@given(seed=seeds)
def test_on_policy_the_other_advantages_have_the_true_gradient(seed):
    episodes, logits = episodes_of(seed)
    for ratio in OF_A_TURN:
        for advantage in UNBIASED:
            update = expected_update(estimator(ratio, advantage), logits, episodes)
            same(scaled(advantage, update), exact_gradient(logits, episodes))


@some
@given(seed=seeds)
def test_a_ratio_of_the_response_mixes_the_advantages_of_its_turns(seed):
    """Each token's gradient is that of the mean of the ℓ, so it gets the mean advantage: biased on-policy as well."""
    episodes, logits = episodes_of(seed)
    exact = exact_gradient(logits, episodes)
    chosen = estimator("response, geometric mean", "of the response")
    same(expected_update(chosen, logits, episodes), exact)
    chosen = estimator("response, geometric mean", "return from the turn on")
    assert (expected_update(chosen, logits, episodes) - exact).norm() > 1e-3 * exact.norm()


@some
@given(seed=seeds)
def test_off_policy_the_product_over_the_response_is_exact(seed):
    episodes, logits = episodes_of(seed, moved=1.0)
    for advantage in UNBIASED:
        update = expected_update(estimator("response, product", advantage), logits, episodes)
        same(scaled(advantage, update), exact_gradient(logits, episodes))
    token = expected_update(estimator("token", "of the response"), logits, episodes)
    assert (token - exact_gradient(logits, episodes)).norm() > 1e-6


@some
@given(seed=seeds)
def test_the_product_over_a_turn_is_exact_where_only_that_turn_has_moved(seed):
    """The last turn, after which nothing comes; tokens of the first turn are on-policy, and so is reaching the last."""
    episodes, moved = episodes_of(seed, moved=1.0)
    logits = episodes.behaviour.clone()
    logits[1] = moved[1]
    exact = exact_gradient(logits, episodes)
    update = expected_update(estimator("turn, product", "return from the turn on"), logits, episodes)
    same(update[1], exact[1])


@some
@given(seed=seeds, count=st.integers(2, 8), data=st.data())
def test_signal_to_noise_by_turns(seed, count, data):
    """Squared, with s the linear share of the return's variance: 1/(K/s − 1), 1/(m/s − 1) and 1/(1/s − 1)."""
    decisions = data.draw(st.integers(2, count))
    found, s = turns.signal_to_noise(count, decisions, torch.Generator().manual_seed(seed))
    assert found["response"] ** 2 == pytest.approx(s / (count - s))
    assert found["decisions"] ** 2 == pytest.approx(s / (decisions - s))
    assert found["critic"] ** 2 == pytest.approx(s / (1 - s))
