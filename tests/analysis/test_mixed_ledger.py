"""One ledger over training seeds, which are added, and start models, whose number is planned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.analysis.claims import ClaimResult, decide_claims
from policygrain.analysis.ledger import Claim, Comparison
from policygrain.analysis.statistics import SEEDS, STARTS, Difference, student
from policygrain.analysis.verdicts import margin_tests
from policygrain.errors import UserError

LEVEL = 0.05
CURVES = [{"statistic": "curve", "of": f"a{i}", "than": f"b{i}", "claimed": "above", "margin": 1} for i in range(4)]
ROUNDS = [{"statistic": "round", "of": f"a{i}", "than": f"b{i}", "claimed": "above", "margin": 1} for i in range(4)]
Values = Sequence[float]


def claim_of(*comparisons: dict[str, Any]) -> Claim:
    return Claim.model_validate({"source": "s", "text": "t", "comparisons": list(comparisons)})


def decide(
    claims: dict[str, Claim], values: dict[Comparison, Values], added: Sequence[dict[str, list[int]]] = ()
) -> list[ClaimResult]:
    def found(c: Comparison) -> Difference:
        return student(values[c], c.replicates, range(len(values[c])))

    return decide_claims(claims, found, "sequential", added)


def test_both_units_of_replication_are_tested() -> None:
    for unit in (SEEDS, STARTS):
        assert student([1.0, 2.0], unit).unit == unit
        assert margin_tests(student([5.0, 5.1, 4.9], unit), "above", 1.0).supports < 0.01
        assert margin_tests(student([5.0], unit), "above", 1.0) == (1, 1, 1)
    assert margin_tests(student([5.0, 5.1], "problems"), "above", 1.0) == (1, 1, 1)


def test_start_models_are_decided_by_a_fixed_test_and_seeds_by_evidence() -> None:
    """Six values of mean 3 and standard deviation 1 against 1: a t-test of two such is below 1%, the e-value is not."""
    values = [2.0, 3.0, 4.0, 2.5, 3.5, 3.0]
    claims = {"curve": claim_of(CURVES[0]), "round": claim_of(ROUNDS[0])}
    asked = {c: values for claim in claims.values() for c in claim.comparisons}
    by_seeds, by_starts = decide(claims, asked)
    assert (by_starts.verdict, by_starts.findings[0].unit) == ("supported", STARTS)
    assert by_starts.findings[0].low == pytest.approx(student(values).low)
    assert by_seeds.findings[0].p.supports > by_starts.findings[0].p.supports
    assert by_seeds.findings[0].low == by_starts.findings[0].low, "one difference has one interval, however tested"


def test_all_comparisons_are_in_one_correction() -> None:
    """The only round's p-value is multiplied by the number of comparisons over seeds and start models together."""
    values = [2.2, 3.0, 1.8]
    p = margin_tests(student(values, STARTS), "above", 1.0).supports
    alone = decide({"one": claim_of(ROUNDS[0])}, {Comparison.model_validate(ROUNDS[0]): values})
    assert alone[0].findings[0].p.supports == pytest.approx(p)
    claims = {"one": claim_of(ROUNDS[0]), "more": claim_of(*CURVES)}
    asked = [c for claim in claims.values() for c in claim.comparisons]
    found = {c: values if c.statistic == "round" else [1.0, 0.9, 1.1] for c in asked}
    assert decide(claims, found)[0].findings[0].p.supports == pytest.approx(5 * p)


def test_a_claim_without_records_takes_no_part_in_the_correction() -> None:
    def found(c: Comparison) -> Difference:
        if c.statistic == "curve":
            raise UserError("no run of 'a0'")
        return student([2.2, 3.0, 1.8], STARTS)

    claims = {"one": claim_of(ROUNDS[0]), "more": claim_of(*CURVES)}
    one, more = decide_claims(claims, found, "sequential")
    assert one.findings[0].p.supports == margin_tests(found(one.claim.comparisons[0]), "above", 1.0).supports
    assert (more.verdict, more.missing) == (None, "no run of 'a0'")


LISTS = st.lists(st.floats(-6, 6), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_verdict_is_taken_back_by_more_seeds(data: st.DataObject) -> None:
    """Whatever seeds are added to whichever comparisons, in rounds, and whatever they say."""
    sides = st.sampled_from(["above", "below", "apart"])
    curves = [c | {"claimed": data.draw(sides)} for c in CURVES[:3]]
    claims = {
        "one": claim_of(curves[0], curves[1]),
        "two": claim_of(curves[2], ROUNDS[0]),
        "three": claim_of(ROUNDS[1]),
    }
    near = data.draw(st.sampled_from([0.0, 3.0, -3.0]))
    asked = [c for claim in claims.values() for c in claim.comparisons]
    values: dict[Comparison, list[float]] = {c: [near + 0.1 * v for v in data.draw(LISTS)] for c in asked}
    added: list[dict[str, list[int]]] = []
    before = decide(claims, values)
    for _ in range(3):
        more: dict[str, list[int]] = {}
        for c in asked:
            if c.statistic == "curve" and data.draw(st.booleans()):
                new = data.draw(LISTS)
                more[c.of] = more[c.than] = list(range(len(values[c]), len(values[c]) + len(new)))
                values[c] = values[c] + new
        added.append(more)
        after = decide(claims, values, added)
        for old, new_result in zip(before, after, strict=True):
            assert old.verdict in ("undecided", new_result.verdict)
            for one, two in zip(old.findings, new_result.findings, strict=True):
                assert one.verdict in ("undecided", two.verdict)
            assert new_result.findings[new_result.decisive].verdict == new_result.verdict
        before = after


def test_a_claim_that_was_rejected_as_a_tie_stays_one() -> None:
    """Its second comparison turns out "not supported" later; the first verdict is the one that was reported."""
    one, two = (Comparison.model_validate(c) for c in CURVES[:2])
    claims = {"claim": claim_of(*CURVES[:2])}
    values = {one: [0.01, -0.01] * 15, two: [0.9, 1.1]}
    assert decide(claims, values)[0].verdict == "no difference larger than the margin"
    later = {one: values[one], two: values[two] + [-9.0, -9.1] * 30}
    found = decide(claims, later, [{"a1": list(range(2, 62)), "b1": list(range(2, 62))}])[0]
    assert [f.verdict for f in found.findings] == ["no difference larger than the margin", "not supported"]
    assert (found.verdict, found.decisive) == ("no difference larger than the margin", 0)


def test_a_mixed_ledger_rarely_makes_a_false_verdict() -> None:
    """Two comparisons over eight seeds, looked at after each, and three over six start models, all at the margin.

    In at most 5% of 2,000 ledgers is any of them called supported, or any of them refuted (plus three errors).
    """
    rng = np.random.default_rng(11)
    claims = {f"claim{i}": claim_of(c) for i, c in enumerate([*CURVES[:2], *ROUNDS[:3]])}
    wrong = np.zeros(2)
    draws = 2000
    for _ in range(draws):
        asked = [claim.comparisons[0] for claim in claims.values()]
        values = {c: rng.normal(1, 1, 6 if c.statistic == "round" else 8).tolist() for c in asked}
        verdicts = {result.verdict for result in decide(claims, values)}
        wrong += ["supported" in verdicts, "not supported" in verdicts]
    assert (wrong / draws <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / draws)).all()
    assert wrong.max() > 0, "it can be wrong, or this test shows nothing"
