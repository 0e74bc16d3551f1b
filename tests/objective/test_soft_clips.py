"""The clips of 2025 and 2026: arithmetic in the open, and what they must be equal to (float64)."""

from math import exp, log, sqrt

import pytest
import torch
from hypothesis import given

from policygrain import TokenBatch, method
from policygrain.objective.clip import DppoKl, DppoTv, Fipo, Gmpo, Likelihood, Sapo, Vespo

from ..support.batches import assert_same, by_hand, close, evaluate, few, fields


def surrogate(part, batch, ratio=None):
    r = batch.log_ratio.exp() if ratio is None else ratio
    return part(r, batch)


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_a_weighted_likelihood_has_a_bounded_weight_and_every_token_its_gradient():
    """Ratios 6 and 0.1, log-probabilities −1 + ℓ; weights 5 and 0.5."""
    batch = by_hand([[log(6.0), log(0.1)]], [2.0])
    found = surrogate(Likelihood(low=0.5), batch)
    close(found.value, [[5 * 2 * (-1 + log(6.0)), 0.5 * 2 * (-1 + log(0.1))]])
    assert found.high.tolist() == [[True, False]] and found.low.tolist() == [[False, True]]
    log_probs = batch.log_probs.clone().requires_grad_()
    out = method("cispo", clip={"low": 0.5}).loss(batch.replace(log_probs=log_probs))
    close(torch.autograd.grad(out.loss, log_probs)[0], [[-5 * 2 / 2, -0.5 * 2 / 2]])


def test_gmpo_bounds_tokens_before_their_mean():
    """ℓ = 0.7, 0.1 with Â > 0: (0.4 + 0.1) / 2; ℓ = −0.7, 0.1 with Â < 0: (−0.4 + 0.1) / 2. GSPO bounds the mean."""
    batch = by_hand([[0.7, 0.1], [-0.7, 0.1]], [1.0, -2.0])
    found = surrogate(Gmpo(), batch)
    close(found.value, [[exp(0.25)] * 2, [-2 * exp(-0.15)] * 2])
    assert found.high.tolist() == [[True, False], [False, False]]
    assert found.low.tolist() == [[False, False], [True, False]]


def test_sapo_is_the_ratio_near_one_and_flat_far_from_it():
    """u(1) = 2Â/τ; du/dr = 4σ(1−σ)Â: Â at r = 1, and 4 · 0.881 · 0.119 Â where τ(r−1) = 2."""
    r = torch.tensor([[1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    batch = by_hand([[0.0, log(3.0)]], [1.5])
    found = surrogate(Sapo(), batch, r)
    close(found.value[0, 0], 2 * 1.5)
    gradient = torch.autograd.grad(found.value.sum(), r)[0][0]
    gate = 1 / (1 + exp(-2.0))
    close(gradient, [1.5, 4 * gate * (1 - gate) * 1.5])
    negative = surrogate(Sapo(), by_hand([[0.0]], [-1.5]))
    close(negative.value, [[-1.5 * 2 / 1.05]])


def test_dppo_masks_by_how_far_a_probability_has_moved():
    """π_old = e^−1 = 0.368: 0.55 has risen by 0.18, D = 0.073; 0.45 by 0.08, D = 0.014. A fall counts with Â < 0."""
    moved = [log(0.55) + 1, log(0.45) + 1]
    batch = by_hand([moved, moved], [1.0, -1.0])
    for part in (DppoTv(), DppoKl()):
        found = surrogate(part, batch)
        assert found.high.tolist() == [[True, False], [False, False]] and not found.low.any()
        close(found.value, [[0.0, 0.45 * exp(1)], [-0.55 * exp(1), -0.45 * exp(1)]])
    old, new = exp(-1), 0.55
    divergence = old * log(old / new) + (1 - old) * log((1 - old) / (1 - new))
    assert not surrogate(DppoKl(high=divergence + 1e-6), batch).high.any()
    assert surrogate(DppoKl(high=divergence - 1e-6), batch).high.sum() == 1
    fallen = by_hand([[log(0.2) + 1]], [-1.0])
    assert surrogate(DppoTv(), fallen).low.all() and not surrogate(DppoTv(low=0.17), fallen).low.any()


def test_vespo_damps_the_weight_of_the_response():
    """W = e^0.5; φ = W² e^{3(1−W)} for Â ≥ 0 and W³ e^{2(1−W)} below. With correction weights ½ and 1, half of W."""
    batch = by_hand([[0.2, 0.3], [0.2, 0.3]], [1.0, -1.0])
    w = exp(0.5)
    positive, negative = w**2 * exp(3 * (1 - w)), w**3 * exp(2 * (1 - w))
    close(surrogate(Vespo(), batch).value, [[positive * -0.8, positive * -0.7], [negative * 0.8, negative * 0.7]])
    corrected = batch.replace(rollout_weights=torch.tensor([[0.5, 1.0], [1.0, 1.0]], dtype=torch.float64))
    half = (w / 2) ** 2 * exp(3 * (1 - w / 2))
    close(surrogate(Vespo(), corrected).value[0], [half * -0.8, half * -0.7])
    loss = method("vespo").loss(corrected).loss
    close(loss, -(half * -1.5 + negative * 1.5) / 4)  # a mean over four tokens; the weights are not applied twice


def test_a_likelihood_can_be_masked_as_ppos_clip_masks():
    """r = 1.5 and 0.5: with Â > 0 the first is beyond 1.28, with Â < 0 the second below 0.8."""
    ratios = [log(1.5), log(0.5)]
    found = surrogate(Likelihood(low=0.8, cap=1.28, outside="mask"), by_hand([ratios, ratios], [1.0, -1.0]))
    close(found.value, [[0.0, 0.5 * (-1 + log(0.5))], [-1.5 * (-1 + log(1.5)), 0.0]])
    assert found.high.tolist() == [[True, False], [False, False]]
    assert found.low.tolist() == [[False, False], [False, True]]


def test_fipo_weighs_a_token_by_what_follows_it():
    """γ = ½: F = 0.1 + 0.2/2, 0.2; f = e^F up to 1.2; a fall leaves f = 1, or e^F where weights may fall below."""
    part = Fipo(half_life=1.0)
    found = surrogate(part, by_hand([[0.1, 0.2], [-0.1, -0.2]], [1.0, -1.0]))
    close(found.value, [[exp(0.1) * min(1.2, exp(0.2)), exp(0.2) * min(1.2, exp(0.2))], [-exp(-0.1), -exp(-0.2)]])
    lower = surrogate(Fipo(half_life=1.0, least=0.5), by_hand([[-0.05, -0.1]], [-1.0]))
    close(lower.value, [[-exp(-0.05) * exp(-0.1), -exp(-0.1) * exp(-0.1)]])


def test_fipo_leaves_out_very_large_ratios():
    """r = e³ > 10 adds nothing to the sum of the token before it, and its own weight with Â < 0 is at most 1."""
    found = surrogate(Fipo(half_life=1.0), by_hand([[0.1, 3.0]], [-1.0]))
    close(found.value, [[-exp(0.1) * exp(0.1), -10.0]])  # the dual clip: c Â
    assert found.high.tolist() == [[False, True]]


def test_dro_is_a_likelihood_with_a_quadratic_penalty():
    """u = Â log π, penalty (β/2) ℓ², a mean over two tokens: Tinker's documented formula, as a mean."""
    batch = by_hand([[0.2, -0.4]], [2.0])
    out = method("dro", penalties=[{"name": "squared_log_ratio", "coefficient": 0.5}]).loss(batch)
    target, sampled = batch.log_probs, batch.old_log_probs
    close(out.loss, -(target * 2.0 - 0.5 * 0.5 * (target - sampled) ** 2).sum() / 2)
    close(out.loss, -(2 * (-0.8) - 0.01 + 2 * (-1.4) - 0.04) / 2)


def test_the_sum_over_a_response_is_divided_by_the_number_of_responses():
    """Two tokens and one, ratio 1, Â = 1 and 2: (2 · 1 + 1 · 2) / 2."""
    batch = by_hand([[0.0, 0.0], [0.0, 0.0]], [1.0, 2.0], [[1, 1], [1, 0]])
    close(method("luspo").loss(batch).loss, -2.0)


# ---- identities -----------------------------------------------------------------------------------------------------


ON_POLICY = ["gspo_token", "gmpo", "luspo", "cispo", "vespo", "sapo", "dppo_tv", "dppo_kl", "minirl", "fipo", "dro"]


@pytest.mark.parametrize("name", ["grpo", "gspo", "turn_ratio", *ON_POLICY])
@few
@given(data=fields(min_live=1))
def test_on_policy_all_have_the_gradient_of_reinforce(name, data):
    data |= {"log_probs": data["old_log_probs"]}
    chosen = method(name)
    expected = evaluate(method("reinforce", aggregation=chosen.aggregation.data()), data)
    torch.testing.assert_close(evaluate(chosen, data).gradient, expected.gradient)


@few
@given(data=fields())
def test_without_bounds_they_are_unclipped_ratios(data):
    unclipped = evaluate(method("gspo", clip=None), data)
    assert_same(evaluate(method("gmpo", clip={"low": 1e9, "high": 1e9}), data), unclipped)
    token = evaluate(method("dapo", clip=None), data)
    for name in ("dppo_tv", "dppo_kl"):
        assert_same(evaluate(method(name, clip={"low": 1e9, "high": 1e9}), data), token)
    likelihood = evaluate(method("cispo", clip={"cap": None}), data)
    torch.testing.assert_close(likelihood.gradient, token.gradient)


@few
@given(data=fields())
def test_a_weak_gate_is_no_gate(data):
    """τ → 0: du/dr → Â."""
    weak = evaluate(method("sapo", clip={"positive": 1e-7, "negative": 1e-7}), data)
    torch.testing.assert_close(weak.gradient, evaluate(method("grpo", clip=None), data).gradient, rtol=1e-5, atol=1e-9)


@few
@given(data=fields(min_live=1))
def test_luspo_is_the_token_mean_times_the_mean_length(data):
    batch = TokenBatch(**data)
    one, other = method("luspo"), method("tepo_v1", clip={"low": 2e-3, "high": 2.5e-3})
    length = batch.whole.n_tokens / batch.whole.n_responses
    torch.testing.assert_close(one.loss(batch).loss, other.loss(batch).loss * length)


@few
@given(data=fields())
def test_the_divergence_masks_what_the_variation_masks(data):
    """Pinsker: D ≥ 2 (π_θ − π_old)², so a token that moved by more than √(δ/2) has D > δ."""
    probabilities = {key: data[key].clamp(max=-0.01) for key in ("log_probs", "old_log_probs")}
    batch, delta = TokenBatch(**data | probabilities), 0.05
    variation = surrogate(DppoTv(low=sqrt(delta / 2), high=sqrt(delta / 2)), batch)
    divergence = surrogate(DppoKl(low=delta, high=delta), batch)
    assert not (variation.low & ~divergence.low).any() and not (variation.high & ~divergence.high).any()


@few
@given(data=fields())
def test_a_flat_weight_is_reinforce_and_a_linear_one_the_product(data):
    flat = {f"{sign}_{key}": 0.0 for sign in ("positive", "negative") for key in ("power", "decay")}
    data["log_probs"] = data["old_log_probs"] + 0.01 * (data["log_probs"] - data["old_log_probs"])
    reinforce = evaluate(method("reinforce"), data)
    none = evaluate(method("vespo", clip=flat), data)
    torch.testing.assert_close(none.gradient, reinforce.gradient, rtol=1e-4, atol=1e-4)  # λ is at least 1e-4
    linear = flat | {"positive_power": 1.0, "negative_power": 1.0}
    product = evaluate(method("dapo", ratio="product", clip=None), data)
    torch.testing.assert_close(
        evaluate(method("vespo", clip=linear), data).gradient, product.gradient, rtol=1e-4, atol=1e-4
    )


@few
@given(data=fields())
def test_a_masked_likelihood_has_the_gradient_of_ppos_clip(data):
    """M sg[r] Â ∇log π is ∇(r Â) where PPO's clip does not bind, and 0 where it does."""
    clip = {"name": "likelihood", "low": 0.8, "cap": 1.28, "outside": "mask"}
    one, other = evaluate(method("dapo", clip=clip), data), evaluate(method("dapo"), data)
    torch.testing.assert_close(one.gradient, other.gradient)
    for side in ("low", "high"):
        assert one.metrics[f"clip_fraction_{side}"] == other.metrics[f"clip_fraction_{side}"]


@few
@given(data=fields())
def test_fipo_with_equal_weights_is_dapo(data):
    equal = evaluate(method("fipo", clip={"least": 1.0, "largest": 1.0, "safety": 1e9}), data)
    assert_same(equal, evaluate(method("dapo", clip={"dual": 10.0}), data))


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
def test_the_discounted_sum_is_that_of_its_definition(width):
    x = torch.randn(2, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.zeros_like(x)
    for t in range(width):
        expected[:, t] = sum(0.9 ** (k - t) * x[:, k] for k in range(t, width))
    close(TokenBatch.discounted_sum(x, 0.9), expected)
