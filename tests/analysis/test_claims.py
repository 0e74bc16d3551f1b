"""Verdicts on claims, from numbers whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from policygrain.analysis.claims import decide_claims, load_claims
from policygrain.analysis.statistics import decide, holm, weigh
from policygrain.errors import UserError


def test_students_test_by_hand() -> None:
    e = weigh([1.0, 2.0, 3.0], "above")
    assert e.effect == 2
    # Standard deviation 1, standard error 1/√3; t = 2√3 on two degrees of freedom; half-width 4.3027/√3.
    assert (e.low, e.high) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)
    assert e.p_for == pytest.approx(stats.t.sf(2 * math.sqrt(3), 2))
    assert e.p_for + e.p_against == pytest.approx(1)
    # With spread 1 and effect 2, t(n−1) / √n falls below 2 at n = 4: 3.18 / 2 = 1.59; at 3 it is 2.48.
    assert e.seeds_needed == 4
    assert weigh([1.0, 2.0, 3.0], "below").p_for == pytest.approx(e.p_against)
    assert weigh([1.0, 2.0, 3.0], "above", margin=1.0).p_for == pytest.approx(stats.t.sf(math.sqrt(3), 2))
    assert weigh([-1.0, -2.0, -3.0], "apart").p_for == pytest.approx(2 * e.p_for)


def test_one_seed_decides_nothing_and_equal_seeds_everything() -> None:
    assert weigh([3.0], "above").p_for == 1 and weigh([3.0], "above").seeds_needed is None
    assert weigh([3.0, 3.0], "above").p_for == 0 and weigh([0.0, 0.0], "above").p_for == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_claim_needs_all_its_comparisons_and_falls_with_one() -> None:
    assert decide([0.01, 0.04], [0.99, 0.9]) == "supported"
    assert decide([0.01, 0.5], [0.99, 0.5]) == "undecided at this scale"
    assert decide([0.01, 0.99], [0.99, 0.01]) == "not supported"


def test_false_verdicts_are_as_rare_as_promised() -> None:
    """Under no effect at all, a ledger of ten one-sided comparisons is right to stay undecided 19 times of 20."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        p = holm([weigh(rng.normal(size=4), "above").p_for for _ in range(10)])
        wrong += min(p) < 0.05
    assert wrong / 400 < 0.08


def test_the_ledger_is_whole_and_says_what_is_missing() -> None:
    claims = load_claims()
    assert len(claims) == 10
    assert {c.statistic for claim in claims.values() for c in claim.comparisons} == {
        "accuracy", "steps", "tokens", "metric", "probe"
    }  # fmt: skip

    def compare(c: object) -> list[float]:
        if getattr(c, "of", "") == "mpo":
            raise UserError("no run of 'mpo'")
        return [5.0, 5.1, 4.9] if getattr(c, "claimed", "") == "above" else [-5.0, -5.1, -4.9]

    decided = {j.name: j for j in decide_claims(claims, compare)}
    assert decided["tepo_best_average"].verdict == "supported"
    assert (
        decided["mpo_beats_token_level"].verdict is None
        and "no run of 'mpo'" in decided["mpo_beats_token_level"].missing
    )
    against = {j.name: j for j in decide_claims(claims, lambda c: [-v for v in compare(c)] if c.of != "mpo" else [1.0])}
    assert against["tepo_best_average"].verdict == "not supported"
    assert against["tepo_clip_ratio"].verdict == "supported", "a difference in either direction"
    assert against["mpo_block_size"].verdict == "undecided at this scale", "one seed decides nothing"
