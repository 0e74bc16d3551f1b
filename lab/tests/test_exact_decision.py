"""Cases of a decision of two tokens: its policy, ties and signs that theory predicts, the record and the command."""

import functools
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.analysis.statistics import over_seeds
from policygrain.records import read_record
from policygrain_lab.cli import main
from policygrain_lab.exact import chains, decision
from policygrain_lab.exact.decision import BATCH, CASES, RATIOS, X1, X2, Case, Estimator, estimators, text
from policygrain_lab.exact.records import CasesRecord

# ---- the policy -----------------------------------------------------------------------------------------------------

LENGTH = 5
some = settings(deadline=None, derandomize=True, max_examples=25)
logits = st.lists(st.floats(-3, 3), min_size=LENGTH + 1, max_size=LENGTH + 1).map(
    lambda values: torch.tensor([values], dtype=torch.float64)
)
places = st.integers(0, LENGTH - 2)


def probabilities(logits, first):
    """Of every response. [responses]."""
    return decision.log_probs(logits, chains.every_response(LENGTH), first).sum(-1).exp()[0]


@some
@given(logits=logits, first=places)
def test_the_expected_reward_is_the_mean_over_all_responses(logits, first):
    wins = decision.reward_probability(chains.every_response(LENGTH), first)[0]
    p = probabilities(logits, first)
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    by_enumeration = (p * wins).sum()
    torch.testing.assert_close(decision.expected_reward(logits)[0], by_enumeration, rtol=0, atol=1e-12)


@some
@given(logits=logits)
def test_the_closed_form_of_the_gradient_is_the_gradient_of_the_expected_reward(logits):
    x = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(decision.expected_reward(x).sum(), x)
    torch.testing.assert_close(decision.exact_gradient(logits), gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", range(LENGTH - 1))
def test_responses_are_sampled_as_often_as_they_are_likely(first):
    values = torch.tensor([[0.5, -1.0, 1.5, 0.3, -0.7, 1.1]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    tokens = chains.sample(
        decision.chain(values, first), torch.rand((1, n, LENGTH), generator=generator, dtype=torch.float64)
    )
    index = (tokens[0] * 2.0 ** torch.arange(LENGTH - 1, -1, -1)).sum(1).long()
    frequency = index.bincount(minlength=2**LENGTH) / n
    p = probabilities(values, first)
    assert ((frequency - p).abs() < 5 * (p * (1 - p) / n).sqrt()).all()


def test_by_hand():
    """p(x1) = 0.5 and p(x2 | 1) = 0.6: J = 0.5·0.6 + 0.5·0.3, ∂J/∂x1 = 0.25·(0.6 − 0.3), ∂J/∂x2 = 0.5·0.6·0.4."""
    policy = decision.start(0.5, 0.6, irrelevant=1)
    assert decision.expected_reward(policy).item() == pytest.approx(0.45)
    assert decision.exact_gradient(policy)[0].tolist() == pytest.approx([0.075, 0.12, 0, 0])


ON_POLICY, COORDINATION, DRIFT, MISMATCH = CASES
SEEDS = 100
# The tokens of these do not have equal weight on-policy, so their estimates there differ from those of the others.
UNEQUAL_WEIGHTS = ("MPO block, K=5", "prefix")
EQUAL_WEIGHTS = [e for e in estimators() if e.name not in UNEQUAL_WEIGHTS]
by_name = {"ids": lambda e: f"{e.name}{', clipped' if e.is_clipped else ''}"}


def plain(name):
    """The estimator of this ratio without a clip."""
    return Estimator(name, RATIOS[name])


def expected(name, case):
    return decision.expected_update(plain(name).method, case)


def exact(case):
    """∇J at the case's present policy. [logits]."""
    return decision.exact_gradient(decision.start(case.p_x1, case.p_x2, case.irrelevant))[0]


@functools.cache
def learning(name, case: Case):
    """Expected reward averaged over training. [seeds]."""
    return decision.train(plain(name).method, case, SEEDS).mean(0)


def difference(one, other, case):
    """Of expected reward, averaged over training, with its interval over seeds."""
    return over_seeds((learning(one, case) - learning(other, case)).numpy())


# ---- on-policy: exact ties ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ON_POLICY.doses)
@pytest.mark.parametrize("estimator", EQUAL_WEIGHTS, **by_name)
def test_on_policy_the_expected_update_is_the_exact_gradient(estimator, first):
    update = decision.expected_update(estimator.method, ON_POLICY.at(first))
    torch.testing.assert_close(update, exact(ON_POLICY), rtol=0, atol=1e-12)


def test_on_policy_mpo_s_blocks_weigh_tokens_by_their_place():
    """Eight tokens, K = 5, φ = 0.3: the first has coverage 0.70 and the last 1.34."""
    whole = exact(ON_POLICY)
    first, last = (expected("MPO block, K=5", ON_POLICY.at(place)) for place in (0, ON_POLICY.tokens - 2))
    assert (first / whole)[X1].item() == pytest.approx(0.70)
    # Its own window has one token and weight 1; those before it have two to five, with weights of these sums.
    coverage = 1 + sum(0.075 / total for total in (0.775, 0.85, 0.925, 1.0))
    assert coverage == pytest.approx(1.34, abs=0.005)
    assert (last / whole)[X2].item() == pytest.approx(coverage)
    # So it gains where the decision is last, and loses where it is first.
    assert difference("MPO block, K=5", "token", ON_POLICY.at(ON_POLICY.tokens - 2)).low > 0.02
    assert difference("MPO block, K=5", "token", ON_POLICY.at(0)).high < -0.02


# ---- expected updates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [COORDINATION, DRIFT], ids=lambda c: c.name)
def test_the_product_is_unbiased(case):
    torch.testing.assert_close(expected("product", case), exact(case), rtol=0, atol=1e-12)


def test_what_each_ratio_pushes_x1_to_under_staleness():
    """Exact: p(1 − p)·(p(x2) − SAFE) = 0.25·(0.6 − 0.3). Without x2 in the ratio, with the old p: 0.25·(0.15 − 0.3)."""
    true, old = 0.075, -0.0375
    pushes = {name: expected(name, COORDINATION)[X1].item() for name in RATIOS}
    for name in ("none", "token", "prefix, own gradient"):
        assert pushes[name] == pytest.approx(old, abs=1e-12)
    for name in ("joint block, K=2", "joint block, K=4", "product"):
        assert pushes[name] == pytest.approx(true, abs=1e-12)
    # Geometric means shrink the correction, towards none.
    for name in ("sequence", "MPO block, K=5", "MPO block, K=5, normalised"):
        assert old < pushes[name] < 0
    assert 0 < pushes["product, cap 2"] < true


def test_under_mismatch_the_expected_product_grows_with_the_length():
    """E exp(noise) = exp(σ²/2) per token; the direction stays. 64 draws of 512 responses: to a tenth."""
    factor = {"token": 1, "joint block, K=2": 2, "product": MISMATCH.tokens, "sequence": 1 / MISMATCH.tokens}
    for name, tokens in factor.items():
        scale = expected(name, MISMATCH)[X2] / exact(MISMATCH)[X2]
        assert scale.log().item() == pytest.approx(tokens * MISMATCH.mismatch**2 / 2, abs=0.1)


@pytest.mark.parametrize("name", ["token", "sequence", "joint block, K=2", "MPO block, K=5"])
def test_the_enumerated_update_is_the_mean_of_sampled_ones(name):
    """A batch's own mean is its baseline, so its update is (1 − 1/N) of that with the expected reward as baseline."""
    batches = 4000
    present, behaviour = (
        decision.start(0.5, p, COORDINATION.irrelevant).expand(batches, -1)
        for p in (COORDINATION.p_x2, COORDINATION.old_p_x2)
    )
    generator = torch.Generator().manual_seed(3)
    found = decision.batch_update(plain(name).method, COORDINATION, present, behaviour, generator)
    error = found.std(0) / batches**0.5
    assert ((found.mean(0) - (1 - 1 / BATCH) * expected(name, COORDINATION)).abs() < 5 * error).all()


# ---- learning -------------------------------------------------------------------------------------------------------


@pytest.mark.release
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
    "case", [ON_POLICY, COORDINATION.at(1), DRIFT.at(0.0), replace(MISMATCH, mismatch=0.0)], ids=lambda c: c.name
)
def test_without_a_dose_there_is_no_difference(case):
    for name in ("joint block, K=2", "sequence", "product"):
        torch.testing.assert_close(learning(name, case), learning("token", case), rtol=0, atol=1e-12)


# ---- the record -----------------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    """Training of a few updates."""
    monkeypatch.setattr(decision, "UPDATES", 4)


@pytest.mark.slow
def test_the_command_writes_its_record_and_figure_and_prints_it(short, tmp_path, capsys):
    assert main(["cases", "--seeds", "3", "--json", "--out", str(tmp_path / "new")]) == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"cases.json", "cases.pdf", "cases.svg", "cases.png"}
    record = read_record(CasesRecord, tmp_path / "new" / "cases.json", "Run it again.")
    assert json.loads(capsys.readouterr().out) == record.model_dump(mode="json")
    assert record.seeds == 3 and [case.name for case in record.cases] == [case.name for case in CASES]
    for case in record.cases:
        assert [(e.name, e.clip is not None) for e in case.estimators] == [(e.name, e.is_clipped) for e in estimators()]
        for estimator in case.estimators:
            assert len(estimator.doses) == (0 if estimator.clip else len(case.doses))
        assert case.of("token").difference == case.of("token", clipped=True).difference == (0, 0, 0)
        assert f"{case.title}. {case.prediction}" in text(record)
    assert text(record).count("joint block, K=2 ") == 2 * len(CASES)


def test_one_seed_has_no_interval(capsys):
    assert main(["cases", "--seeds", "1"]) == 2
    assert "--seeds 1: an interval over seeds needs at least 2" in capsys.readouterr().err
