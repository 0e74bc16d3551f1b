"""Rollout correction, rejection, anchors and the off-policy mask: by hand, and identities (float64)."""

from itertools import product
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import method
from policygrain.objective import Sampler
from policygrain.objective.loss import effective_sample_share, rollout_weights

from ..support.batches import assert_same, close, evaluate, few, fields
from . import BY_HAND

# Two tokens of a response, d = 1.2 and −0.4, and one of another, d = 0.1; the last is padding.
DIFFERENCE = torch.tensor([[1.2, -0.4], [0.1, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1], [1, 0]])


def weights(x, mask, **settings):
    return rollout_weights(x, torch.zeros_like(x), mask, Sampler(**settings))


@pytest.mark.parametrize(("settings", "expected"), BY_HAND["rollout_weights"])
def test_weights_by_grain(settings, expected):
    close(weights(DIFFERENCE, MASK, **settings), expected)


def test_the_effective_share_is_that_of_equal_weights():
    """(3 + 1)² / (2 (9 + 1)) = 0.8; equal weights: 1; one of two dropped: ½."""
    mask = torch.tensor([[1, 1, 0]])
    for values, share in (([3.0, 1.0, 7.0], 0.8), ([2.0, 2.0, 0.0], 1.0), ([5.0, 0.0, 1.0], 0.5), ([0.0] * 3, 0.0)):
        assert effective_sample_share(torch.tensor([values]), mask) == pytest.approx(share)


@few
@given(seed=st.integers(0, 1000), length=st.integers(1, 3))
def test_uncapped_sequence_weights_are_unbiased(seed, length):
    """Over all responses to a prompt Σ μ w f = Σ π f for any f. With a cap, the expected weight is at most 1."""
    generator = torch.Generator().manual_seed(seed)
    # Every response of at most ``length`` tokens among 0, 1 and 2, of which 0 ends it.
    cut = (tokens[: tokens.index(0) + 1] if 0 in tokens else tokens for tokens in product(range(3), repeat=length))
    responses = list(dict.fromkeys(cut))
    mask = torch.tensor([[t < len(r) for t in range(length)] for r in responses])

    def policy():
        """Log-probabilities of the tokens of each response; a token's distribution depends on those before it."""
        prefixes = dict.fromkeys(r[:t] for r in responses for t in range(len(r)))
        after = {p: torch.log_softmax(torch.randn(3, generator=generator).double(), 0) for p in prefixes}
        rows = [[float(after[r[:t]][r[t]]) if t < len(r) else 0.0 for t in range(length)] for r in responses]
        return torch.tensor(rows, dtype=torch.float64)

    log_pi, log_mu = policy(), policy()
    pi, mu = log_pi.sum(1).exp(), log_mu.sum(1).exp()
    f = torch.randn(len(responses), generator=generator).double()
    correction = weights(log_pi - log_mu, mask, correction_cap=1e9, correction_grain="sequence")[:, 0]
    close((mu * correction * f).sum(), (pi * f).sum())
    for outside in ("truncate", "mask"):
        settings = {"correction_cap": 1.2, "correction_grain": "sequence", "correction_outside": outside}
        bounded = weights(log_pi - log_mu, mask, **settings)[:, 0]
        assert (mu * bounded).sum() <= 1 + 1e-9


# ---- anchors --------------------------------------------------------------------------------------------------------


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
    corrections = rollout_weights(data["log_probs"], data["rollout_log_probs"], data["mask"], chosen.sampler)
    on_policy = data | {"old_log_probs": data["log_probs"], "rollout_weights": corrections}
    assert_same(evaluate(chosen, old), evaluate(method(name, anchor="old"), on_policy))
    micro = [[row] for row in range(len(data["mask"]))]
    assert_same(evaluate(chosen, data, micro), evaluate(chosen, data))
