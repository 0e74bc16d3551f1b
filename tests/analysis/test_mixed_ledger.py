"""One ledger over training seeds and initial models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from policygrain.analysis.claims import ClaimResult, decide_claims
from policygrain.analysis.ledger import Claim, Comparison
from policygrain.analysis.statistics import SEEDS, STARTS, Difference, student
from policygrain.analysis.verdicts import effect_tests
from policygrain.errors import UserError

LEVEL = 0.05
CURVES = [{"statistic": "drop", "of": f"a{i}", "than": f"b{i}", "claimed": "above"} for i in range(4)]
ROUNDS = [{"statistic": "round", "of": f"a{i}", "than": f"b{i}", "claimed": "above"} for i in range(4)]
Values = Sequence[float]


def claim_of(*comparisons: dict[str, Any]) -> Claim:
    return Claim.model_validate({"source": "s", "text": "t", "comparisons": list(comparisons)})


def decide(claims: dict[str, Claim], values: dict[Comparison, Values]) -> list[ClaimResult]:
    return decide_claims(claims, lambda c: student(values[c], c.replicates))


def test_both_units_of_replication_are_tested() -> None:
    for unit in (SEEDS, STARTS):
        assert student([1.0, 2.0], unit).unit == unit
        assert effect_tests(student([4.0, 4.1, 3.9], unit), "above").holds < 0.01
        assert effect_tests(student([5.0], unit), "above") == (1, 1, 1)
    assert effect_tests(student([5.0, 5.1], "problems"), "above") == (1, 1, 1)


def test_all_comparisons_are_in_one_correction() -> None:
    """The only round's p-value is multiplied by the number of comparisons over seeds and initial models together."""
    values = [1.2, 2.0, 0.8]
    p = effect_tests(student(values, STARTS), "above").holds
    alone = decide({"one": claim_of(ROUNDS[0])}, {Comparison.model_validate(ROUNDS[0]): values})
    assert alone[0].findings[0].p.holds == pytest.approx(p)
    claims = {"one": claim_of(ROUNDS[0]), "more": claim_of(*CURVES)}
    asked = [c for claim in claims.values() for c in claim.comparisons]
    found = {c: values if c.statistic == "round" else [0.0, -0.1, 0.1] for c in asked}
    assert decide(claims, found)[0].findings[0].p.holds == pytest.approx(5 * p)


def test_a_claim_without_records_takes_no_part_in_the_correction() -> None:
    def found(c: Comparison) -> Difference:
        if c.statistic == "drop":
            raise UserError("no run of 'a0'")
        return student([1.2, 2.0, 0.8], STARTS)

    claims = {"one": claim_of(ROUNDS[0]), "more": claim_of(*CURVES)}
    one, more = decide_claims(claims, found)
    assert one.findings[0].p.holds == effect_tests(found(one.claim.comparisons[0]), "above").holds
    assert (more.verdict, more.missing) == (None, "no run of 'a0'")


def test_a_mixed_ledger_rarely_makes_a_false_verdict() -> None:
    """Two comparisons over eight seeds and three over six initial models, without any effect.

    In at most 5% of 2,000 ledgers does any of them have a direction (plus three errors).
    """
    rng = np.random.default_rng(11)
    claims = {f"claim{i}": claim_of(c) for i, c in enumerate([*CURVES[:2], *ROUNDS[:3]])}
    wrong = 0
    draws = 2000
    for _ in range(draws):
        asked = [claim.comparisons[0] for claim in claims.values()]
        values = {c: rng.normal(0, 1, 6 if c.statistic == "round" else 8).tolist() for c in asked}
        verdicts = {result.verdict for result in decide(claims, values)}
        wrong += bool(verdicts & {"holds", "opposite"})
    assert wrong / draws <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / draws)
    assert wrong > 0, "it can be wrong, or this test shows nothing"
