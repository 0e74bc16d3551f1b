"""Parts that other trainers have: arithmetic and identities (float64). Their code is in test_parity.py."""

from dataclasses import replace
from itertools import pairwise, product
from math import exp, inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective.advantage import Gigpo, MaxRl, TurnReturn, TurnRewards
from policygrain.objective.clip import Likelihood, M2po, Topr
from policygrain.objective.correction import rollout_weights
from policygrain.objective.penalty import Kl
from policygrain.objective.ratio import Holder

from ..support.batches import assert_same, by_hand, close, evaluate, few, fields, tensor

np = pytest.importorskip("numpy", reason="the formulas of other trainers are written with numpy")

# ---- TOPR -----------------------------------------------------------------------------------------------------------


def test_topr_imitates_good_responses_and_caps_bad_ones():
    """Ratios 2 and ½ with Â = 3: weights 1 and 1; with Â = −3: 1 and ½."""
    ratios = [log(2.0), log(0.5)]
    batch = by_hand([ratios, ratios], [3.0, -3.0])
    found = Topr()(batch.log_ratio.exp(), batch)
    log_pi = [-1 + x for x in ratios]
    close(found.value, [[3 * log_pi[0], 3 * log_pi[1]], [-3 * log_pi[0], -1.5 * log_pi[1]]])
    assert found.high.tolist() == [[False, False], [True, False]] and not found.low.any()


@few
@given(data=fields(min_live=1))
def test_topr_with_negative_advantages_is_a_capped_likelihood(data):
    data |= {"advantages": -data["advantages"].abs()}
    one, other = (method("cispo", clip=part.data()) for part in (Topr(cap=1.5), Likelihood(cap=1.5)))
    assert_same(evaluate(one, data), evaluate(other, data))


# ---- M2PO -----------------------------------------------------------------------------------------------------------


def test_m2po_masks_the_largest_until_the_budget_holds():
    """ℓ = 0.1, 0.2, 0.3: means 0.0467 with all, 0.025 without the last. Tokens that move the other way never count."""
    batch = by_hand([[0.1, 0.2, 0.3, -1.0], [0.1, 1.0, 1.0, 1.0]], [1.0, -1.0])
    found = M2po()(batch.log_ratio.exp(), batch)
    assert found.high.tolist() == [[False, False, True, False], [False] * 4] and not found.low.any()
    close(found.value, [[exp(0.1), exp(0.2), 0.0, exp(-1)], [-exp(0.1), -exp(1), -exp(1), -exp(1)]])


def m2po_mask(log_ratio, advantages, mask, budget):
    """Algorithm 1 as a loop: True where the token is kept."""
    kept = mask.copy()
    while True:
        inside = kept & (advantages * log_ratio > 0)
        if not inside.any() or (log_ratio[inside] ** 2).mean() <= budget:
            return kept
        kept.flat[np.argmax(np.where(inside, log_ratio**2, -1))] = False


@few
@given(data=fields(min_live=1), budget=st.floats(1e-3, 0.3))
def test_m2po_is_the_loop_of_its_paper(data, budget):
    batch = TokenBatch(**data)
    kept = m2po_mask(batch.log_ratio.numpy(), batch.advantages.numpy(), batch.mask.numpy(), budget)
    value = batch.log_ratio.exp() * batch.advantages * torch.as_tensor(kept)
    expected = -(value * batch.mask).sum() / batch.whole.n_tokens
    out = method("dapo", clip={"name": "m2po", "budget": budget}).loss(batch)
    close(out.loss, expected)
    clipped = out.metrics["clip_fraction_low"] + out.metrics["clip_fraction_high"]
    assert clipped == pytest.approx(float((batch.mask & ~torch.as_tensor(kept)).sum() / batch.whole.n_tokens))


@few
@given(data=fields())
def test_a_large_budget_masks_nothing(data):
    large = evaluate(method("dapo", clip={"name": "m2po", "budget": 1e6}), data)
    assert_same(large, evaluate(method("dapo", clip=None), data))


# ---- Hölder's mean --------------------------------------------------------------------------------------------------


def test_the_holder_mean_by_hand():
    """Ratios 2 and ½: arithmetic mean 1.25, harmonic 0.8, p = 2: √2.125."""
    batch = by_hand([[log(2.0), log(0.5), 9.0]], [1.0], [[1, 1, 0]])
    for power, expected in ((1, 1.25), (-1, 0.8), (2, 2.125**0.5), (0, 1.0)):
        close(Holder(power=power)(batch).exp(), [[expected] * 3])


@few
@given(data=fields())
def test_the_ends_of_the_holder_mean_are_grpo_and_gspo(data):
    """p = 1 without a clip: value and gradient of token ratios and a mean over the response; p → 0: the sequence's."""
    unclipped = {
        power: evaluate(method("grpo", ratio={"name": "holder", "power": power}, clip=None), data)
        for power in (1, 0, 1e-7, -1e-7)
    }
    assert_same(unclipped[1], evaluate(method("grpo", clip=None), data))
    sequence = evaluate(method("gspo", clip=None), data)
    assert_same(unclipped[0], sequence)
    for power in (1e-7, -1e-7):
        assert_same(unclipped[power], sequence, tolerance=1e-5)


@few
@given(data=fields(min_live=1))
def test_the_holder_mean_grows_with_its_power_to_the_largest_ratio(data):
    batch = TokenBatch(**data)
    live = batch.lengths > 0
    means = [Holder(power=p)(batch)[live, 0] for p in (-100, -2, -0.1, 0, 0.1, 2, 100)]
    assert all((one <= other + 1e-12).all() for one, other in pairwise(means))
    log_ratio = batch.log_ratio[live]
    largest = log_ratio.masked_fill(~batch.mask[live], -torch.inf).amax(1)
    torch.testing.assert_close(means[-1], largest, rtol=0, atol=log(9) / 100 + 1e-12)


# ---- KL divergence --------------------------------------------------------------------------------------------------


def kl_batch():
    """d = log π_ref − log π_θ = 0.5 and −0.5, ℓ = 0.2 and −0.1."""
    batch = by_hand([[0.2, -0.1]], [0.0])
    return batch.replace(ref_log_probs=batch.log_probs + tensor([0.5, -0.5]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"estimator": "k1"}, [-0.5, 0.5]),
        ({"estimator": "k2"}, [0.125, 0.125]),
        ({"estimator": "k3"}, [exp(0.5) - 1.5, exp(-0.5) - 0.5]),
        ({"estimator": "k2", "times_ratio": True}, [0.125 * exp(0.2), 0.125 * exp(-0.1)]),
        ({"estimator": "k3", "place": "reward"}, [exp(0.5) - 1.5, exp(-0.5) - 0.5]),
    ],
)
def test_estimators_of_the_divergence_by_hand(settings, expected):
    close(Kl(**settings)(kl_batch()), [expected])


def gradient_of(penalty, log_probs, reference, old, weights):
    """Σ_i weight_i Σ_t of the penalty's gradient by the log-probabilities."""
    leaf = log_probs.detach().clone().requires_grad_()
    batch = TokenBatch(leaf, old, torch.zeros(len(leaf)).double(), torch.ones_like(leaf), ref_log_probs=reference)
    return torch.autograd.grad((weights.unsqueeze(1) * penalty(batch)).sum(), leaf)[0]


@few
@given(seed=st.integers(0, 1000), off_policy=st.booleans())
def test_a_divergence_in_the_reward_has_its_true_gradient(seed, off_policy):
    """Over all responses of two tokens, of which each has a distribution: k1 in the reward is ∇ KL(π ‖ reference).

    On-policy. Off-policy it is with the ratio of the response, which for tokens that are independent of each other is
    E[r_t f_t] only where the other token is on-policy; so there one token has moved.
    """
    generator = torch.Generator().manual_seed(seed)
    logits, reference, moved = (torch.randn(2, 3, generator=generator).double() for _ in range(3))
    logits.requires_grad_()
    responses = torch.tensor([*product(range(3), repeat=2)])

    def of(values):
        return values.log_softmax(1)[torch.arange(2), responses]

    now, ref = of(logits), of(reference)
    expected = torch.autograd.grad((now.sum(1).exp() * (now - ref).sum(1)).sum(), logits, retain_graph=True)[0]
    old = now.detach()
    if off_policy:
        old = torch.stack([of(moved)[:, 0], old[:, 1]], 1)
        found = gradient_of(Kl(estimator="k1", place="reward", times_ratio=True), now, ref, old, old.sum(1).exp())
        (estimate,) = torch.autograd.grad(now, logits, found, retain_graph=True)
        torch.testing.assert_close(estimate[0], expected[0])
        return
    found = gradient_of(Kl(estimator="k1", place="reward"), now, ref, old, old.sum(1).exp())
    (estimate,) = torch.autograd.grad(now, logits, found, retain_graph=True)
    torch.testing.assert_close(estimate, expected)
    # k1 in the loss has no gradient on average; k2 has that of each token's own divergence, and k3 that of the reverse.
    (reverse,) = torch.autograd.grad((ref.sum(1).exp() * (ref - now).sum(1)).sum(), logits, retain_graph=True)
    for estimator, wanted in (("k1", 0 * expected), ("k2", expected), ("k3", reverse)):
        found = gradient_of(Kl(estimator=estimator), now, ref, old, old.sum(1).exp())
        torch.testing.assert_close(torch.autograd.grad(now, logits, found, retain_graph=True)[0], wanted)


# ---- anchors --------------------------------------------------------------------------------------------------------


@few
@given(data=fields(min_live=1))
def test_an_anchor_is_the_policy_of_the_ratio(data):
    engine = data | {"old_log_probs": data["rollout_log_probs"]}
    assert_same(evaluate(method("dapo", anchor="rollout"), data), evaluate(method("dapo"), engine))
    micro = [[row] for row in range(len(data["mask"]))]
    for name in ("dapo", "kl_cov"):
        chosen = method(name, anchor="rollout")
        assert_same(evaluate(chosen, data, micro), evaluate(method(name), engine))


@few
@given(data=fields(min_live=1), name=st.sampled_from(("a3po", "dapo", "kl_cov", "tepo")))
def test_the_ends_of_the_loglinear_anchor(data, name):
    """Up to one version it is the engine (α = 0), at infinite age the current policy (α = 1), of any method."""
    chosen = method(name, anchor="loglinear")
    engine = method(name, anchor="rollout", sampler={"correction_cap": None})
    for age in (0, 1):
        young = data | {"staleness": torch.full((len(data["mask"]),), age)}
        assert_same(evaluate(chosen, young), evaluate(engine, data))
    old = data | {"staleness": torch.full(data["mask"].shape, inf)}
    weights = rollout_weights(data["log_probs"], data["rollout_log_probs"], data["mask"], chosen.sampler)
    on_policy = data | {"old_log_probs": data["log_probs"], "rollout_weights": weights}
    assert_same(evaluate(chosen, old), evaluate(method(name, anchor="old"), on_policy))
    micro = [[row] for row in range(len(data["mask"]))]
    assert_same(evaluate(chosen, data, micro), evaluate(chosen, data))


# ---- advantages -----------------------------------------------------------------------------------------------------


def test_maxrl_has_the_gradient_of_the_truncated_likelihood():
    """Over all groups of three: Σ_{k<3} (1 − p)^(k−1) p', the series of log p."""
    p, size = 0.3, 3
    total = 0.0
    for group in product((0.0, 1.0), repeat=size):
        rewards = torch.tensor([group], dtype=torch.float64)
        chance = np.prod([p if r else 1 - p for r in group])
        scores = rewards / p - (1 - rewards) / (1 - p)  # ∂ log P(r) / ∂p
        total += chance * float((MaxRl()(rewards) * scores).sum() / size)
    assert total == pytest.approx((1 - (1 - p) ** (size - 1)) / p)


@few
@given(rewards=st.lists(st.lists(st.floats(0, 10), min_size=4, max_size=4), min_size=1, max_size=3))
def test_maxrl_is_at_most_the_size_of_the_group_minus_one(rewards):
    found = MaxRl()(torch.tensor(rewards, dtype=torch.float64))
    assert torch.isfinite(found).all() and (found.abs() <= 3 + 1e-9).all()


TURN_REWARDS = TurnRewards(
    rewards=torch.tensor([[[1.0, 2.0], [0.0, 9.0]]], dtype=torch.float64),
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
    close(method("dr_grpo").advantages(TURN_REWARDS), [[[1.5, 1.5], [-1.5, 0.0]]])


@pytest.mark.parametrize(
    "advantage", [{"name": "turn_return"}, {"name": "turn_return", "baseline": "reward"}, "gigpo", "dr_grpo"]
)
def test_rewards_of_turns_that_are_not_there_have_no_influence(advantage):
    with_nan = TURN_REWARDS.rewards.masked_fill(TURN_REWARDS.mask == 0, torch.nan)
    assert with_nan.isnan().any()
    ours = method("grpo", advantage=advantage)
    close(ours.advantages(replace(TURN_REWARDS, rewards=with_nan)), ours.advantages(TURN_REWARDS))


@few
@given(rewards=st.lists(st.lists(st.integers(-4, 4).map(float), min_size=3, max_size=3), min_size=1, max_size=3))
def test_with_one_turn_the_advantage_of_a_turn_is_that_of_the_response(rewards):
    """All begin in the same state, so GiGPO counts the same advantage twice."""
    rewards = torch.tensor(rewards, dtype=torch.float64)
    for std, name in ((False, "dr_grpo"), (True, "grpo")):
        whole = method(name).advantages(rewards)
        for baseline in ("return", "reward"):
            turn = method("grpo", advantage={"name": "turn_return", "baseline": baseline, "std": std})
            torch.testing.assert_close(turn.advantages(rewards), whole)
        twice = method("grpo", advantage={"name": "gigpo", "std": std}).advantages(rewards)
        torch.testing.assert_close(twice, 2 * whole)


# ---- rejection ------------------------------------------------------------------------------------------------------


def binary_kl(p, q):
    """KL divergence of two Bernoulli variables."""
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


@pytest.mark.parametrize("grain", ["token", "sequence", "geometric"])
@few
@given(data=fields(min_live=1), high=st.floats(1e-3, 0.3))
def test_tokens_are_rejected_by_the_larger_binary_divergence(grain, data, high):
    log_probs, engine = (data[key].clamp(max=-0.01) for key in ("old_log_probs", "ref_log_probs"))
    mask = data["mask"].numpy()
    p, q = (x.exp().numpy() for x in (log_probs, engine))
    measure = np.where(mask, np.maximum(binary_kl(p, q), binary_kl(q, p)), 0.0)
    if grain != "token":
        measure = np.broadcast_to(measure.sum(1, keepdims=True), measure.shape)
    if grain == "geometric":
        measure = measure / mask.sum(1, keepdims=True).clip(1)
    settings = {"rejection_measure": "binary_kl", "rejection_grain": grain, "rejection_high": high}
    found = rollout_weights(log_probs, engine, data["mask"], method("dapo", sampler=settings).sampler)
    clear = torch.as_tensor(np.abs(measure - high) > 1e-6) & data["mask"]
    assert torch.equal(found[clear], torch.as_tensor(np.where(measure > high, 0.0, 1.0))[clear])


def test_weights_and_rejection_go_together():
    """Log ratios 1.2, −0.4 of one response, 0.1 of another: truncated at 2; responses with a product above 1.5 go."""
    x, mask = tensor([1.2, -0.4], [0.1, 9.0]), torch.tensor([[1, 1], [1, 0]])
    settings = {"correction_cap": 2.0, "rejection_grain": "sequence", "rejection_high": 3.0}
    found = rollout_weights(x, torch.zeros_like(x), mask, method("dapo", sampler=settings).sampler)
    close(found, [[2.0, exp(-0.4)], [exp(0.1), 1.0]])
    narrow = settings | {"rejection_high": 1.5}
    found = rollout_weights(x, torch.zeros_like(x), mask, method("dapo", sampler=narrow).sampler)
    close(found, [[0.0, 0.0], [exp(0.1), 1.0]])
