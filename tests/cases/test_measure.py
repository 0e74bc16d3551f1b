"""Ties and signs that theory predicts, with the losses of training."""

import functools
from dataclasses import replace

import pytest
import torch

from policygrain.analysis.statistics import over_seeds
from policygrain.cases import measure, policies
from policygrain.cases.definitions import (
    BAND,
    BATCH,
    CASES,
    NO_CLIP,
    RATIOS,
    UNEQUAL_WEIGHTS,
    Case,
    Estimator,
    estimators,
)

ON_POLICY, COORDINATION, DRIFT, MISMATCH = CASES
SEEDS = 100
EQUAL_WEIGHTS = [e for e in estimators() if e.name not in UNEQUAL_WEIGHTS]
by_name = {"ids": lambda e: f"{e.name}{', clipped' if e.is_clipped else ''}"}


def plain(name):
    """The estimator of this ratio without a clip."""
    return Estimator(name, RATIOS[name])


def expected(name, case):
    return measure.expected_update(plain(name).method, case)


@functools.cache
def learning(name, case: Case):
    """Expected reward averaged over training. [seeds]."""
    return measure.train(plain(name).method, case, SEEDS).mean(0)


def difference(one, other, case):
    """Of expected reward, averaged over training, with its interval over seeds."""
    return over_seeds((learning(one, case) - learning(other, case)).numpy())


# ---- on-policy: exact ties ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ON_POLICY.doses)
@pytest.mark.parametrize("estimator", EQUAL_WEIGHTS, **by_name)
def test_on_policy_the_expected_update_is_the_exact_gradient(estimator, first):
    update = measure.expected_update(estimator.method, ON_POLICY.at(first))
    torch.testing.assert_close(update, measure.exact_gradient(ON_POLICY), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", EQUAL_WEIGHTS, **by_name)
def test_on_policy_all_learning_curves_tie(estimator):
    token = measure.train(plain("token").method, ON_POLICY, 20)
    torch.testing.assert_close(measure.train(estimator.method, ON_POLICY, 20), token, rtol=0, atol=1e-12)


def test_on_policy_mpo_s_blocks_weigh_tokens_by_their_place():
    """Eight tokens, K = 5, φ = 0.3: the first has coverage 0.70 and the last 1.34."""
    exact = measure.exact_gradient(ON_POLICY)
    first, last = (expected("MPO block, K=5", ON_POLICY.at(place)) for place in (0, ON_POLICY.tokens - 2))
    assert (first / exact)[policies.X1].item() == pytest.approx(0.70)
    # Its own window has one token and weight 1; those before it have two to five, with weights of these sums.
    coverage = 1 + sum(0.075 / total for total in (0.775, 0.85, 0.925, 1.0))
    assert coverage == pytest.approx(1.34, abs=0.005)
    assert (last / exact)[policies.X2].item() == pytest.approx(coverage)
    # So it gains where the decision is last, and loses where it is first.
    assert difference("MPO block, K=5", "token", ON_POLICY.at(ON_POLICY.tokens - 2)).low > 0.02
    assert difference("MPO block, K=5", "token", ON_POLICY.at(0)).high < -0.02


# ---- expected updates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [COORDINATION, DRIFT], ids=lambda c: c.name)
def test_the_product_is_unbiased(case):
    torch.testing.assert_close(expected("product", case), measure.exact_gradient(case), rtol=0, atol=1e-12)


def test_what_each_ratio_pushes_x1_to_under_staleness():
    """Exact: p(1 − p)·(p(x2) − SAFE) = 0.25·(0.6 − 0.3). Without x2 in the ratio, with the old p: 0.25·(0.15 − 0.3)."""
    exact, old = 0.075, -0.0375
    pushes = {name: expected(name, COORDINATION)[policies.X1].item() for name in RATIOS}
    for name in ("none", "token", "prefix, own gradient"):
        assert pushes[name] == pytest.approx(old, abs=1e-12)
    for name in ("joint block, K=2", "joint block, K=4", "product"):
        assert pushes[name] == pytest.approx(exact, abs=1e-12)
    # Geometric means shrink the correction, towards none.
    for name in ("sequence", "MPO block, K=5", "MPO block, K=5, normalised"):
        assert old < pushes[name] < 0
    assert 0 < pushes["product, cap 2"] < exact


def test_under_mismatch_the_expected_product_grows_with_the_length():
    """E exp(noise) = exp(σ²/2) per token; the direction stays. 64 draws of 512 responses: to a tenth."""
    factor = {"token": 1, "joint block, K=2": 2, "product": MISMATCH.tokens, "sequence": 1 / MISMATCH.tokens}
    for name, tokens in factor.items():
        scale = expected(name, MISMATCH)[policies.X2] / measure.exact_gradient(MISMATCH)[policies.X2]
        assert scale.log().item() == pytest.approx(tokens * MISMATCH.mismatch**2 / 2, abs=0.1)


@pytest.mark.parametrize("name", ["token", "sequence", "joint block, K=2", "MPO block, K=5"])
def test_the_enumerated_update_is_the_mean_of_sampled_ones(name):
    """A batch's own mean is its baseline, so its update is (1 − 1/N) of that with the expected reward as baseline."""
    batches = 4000
    present, behaviour = (
        policies.start(0.5, p, COORDINATION.irrelevant).expand(batches, -1)
        for p in (COORDINATION.p_x2, COORDINATION.old_p_x2)
    )
    generator = torch.Generator().manual_seed(3)
    found = measure.batch_update(plain(name).method, COORDINATION, present, behaviour, generator)
    error = found.std(0) / batches**0.5
    assert ((found.mean(0) - (1 - 1 / BATCH) * expected(name, COORDINATION)).abs() < 5 * error).all()


@pytest.mark.parametrize("clip", [NO_CLIP, BAND], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", RATIOS)
def test_policies_of_one_batch_do_not_influence_each_other(name, clip):
    method = Estimator(name, RATIOS[name], clip).method
    generator = torch.Generator().manual_seed(0)
    size = (3, BATCH, COORDINATION.tokens)
    logits = torch.randn((3, 9), generator=generator, dtype=torch.float64)
    tokens = torch.rand(size, generator=generator, dtype=torch.float64).round()
    old = policies.log_probs(torch.randn((3, 9), generator=generator, dtype=torch.float64), tokens, 2)
    advantages = torch.randn(size[:2], generator=generator, dtype=torch.float64)
    inputs = (logits, tokens, old, advantages)
    together = measure.update(method, *inputs, first=2)
    alone = [measure.update(method, *(x[i : i + 1] for x in inputs), first=2) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-12)


# ---- learning -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "better", "worse"),
    [
        (COORDINATION, "joint block, K=2", "token"),
        (COORDINATION, "joint block, K=2", "product"),
        (COORDINATION, "product", "token"),
        (COORDINATION, "token", "sequence"),
        (DRIFT, "token", "product"),
        (DRIFT, "product, cap 2", "product"),
        (MISMATCH, "sequence", "token"),
        (MISMATCH, "token", "joint block, K=2"),
        (MISMATCH, "joint block, K=2", "product"),
    ],
    ids=lambda x: x.name if isinstance(x, Case) else x,
)
def test_the_predicted_order(case, better, worse):
    assert difference(better, worse, case).low > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ratio", "sign"),
    [
        (COORDINATION, "joint block, K=2", 1),
        (COORDINATION, "sequence", -1),
        (DRIFT, "product", -1),
        (MISMATCH, "sequence", 1),
        (MISMATCH, "joint block, K=2", -1),
        (MISMATCH, "product", -1),
    ],
    ids=lambda x: x.name if isinstance(x, Case) else str(x),
)
def test_the_difference_to_token_grows_with_the_dose(case, ratio, sign):
    means = [sign * difference(ratio, "token", case.at(dose)).mean for dose in case.doses]
    assert means == sorted(means) and means[-1] > 0.005


@pytest.mark.parametrize(
    "case", [COORDINATION.at(1), DRIFT.at(0.0), replace(MISMATCH, mismatch=0.0)], ids=lambda c: c.name
)
def test_without_a_dose_there_is_no_difference(case):
    for name in ("joint block, K=2", "sequence", "product"):
        torch.testing.assert_close(learning(name, case), learning("token", case), rtol=0, atol=1e-12)
