"""The answers to the project's questions: what is said of differences, ties and what is open."""

from __future__ import annotations

import re

import numpy as np
import pytest

from policygrain.analysis.claims import ClaimResult, decide_claims
from policygrain.analysis.findings import answer, answers_text
from policygrain.analysis.ledger import Claim, Comparison
from policygrain.analysis.statistics import STARTS, Difference, student


def asked(*pairs: tuple[str, str]) -> dict[str, Claim]:
    comparisons = [Comparison(statistic="round", of=of, than=than, claimed="apart") for of, than in pairs]  # type: ignore[call-arg]
    return {"grain": Claim(source="s", text="Does it matter?", comparisons=comparisons)}


def decided(effects: dict[str, float], spread: float = 0.5) -> ClaimResult:
    """Each method against `token`, on eight start models; the margin is a point."""

    def measured(c: Comparison) -> Difference:
        noise = np.random.default_rng(0).standard_normal(8)
        return student(effects[c.of] + spread * (noise - noise.mean()), STARTS)

    (found,) = decide_claims(asked(*((name, "token") for name in effects)), measured)
    return found


def test_what_differs_is_said_with_its_interval_and_unit() -> None:
    text = answer(decided({"block": 3.0, "sequence": 0.1}), str.upper)
    measured = r"points \(one round, reward, margin 1, 8 start models\)\."
    assert re.match(rf"Does it matter\? Yes: BLOCK − TOKEN \+3 \[\+2\.\d, \+3\.\d\] {measured}", text), text
    assert text.endswith("Not beyond the margin in 1 of 2 comparisons (+0.1 points): SEQUENCE − TOKEN."), text


def test_ties_alone_are_a_no() -> None:
    text = answer(decided({"block": 0.1, "sequence": -0.1}))
    pairs = "block − token; sequence − token"
    assert text == f"Does it matter? No, not beyond the margin in 2 of 2 comparisons (-0.1 to +0.1 points): {pairs}."


def test_what_is_open_says_what_was_found() -> None:
    text = answer(decided({"block": 0.5, "sequence": -2.0}, spread=9.0))
    assert text.startswith("Does it matter? No difference shown in 2 of 2 comparisons (-2.0 to +0.5 points): block")
    # An interval that excludes 0 and not the margin.
    near = answer(decided({"block": 1.2, "sequence": 0.3}, spread=1.0))
    assert "Inconclusive after correction (uncorrected 95% intervals exclude 0): block − token +1.2 [" in near
    assert "Not beyond the margin in 1 of 2 comparisons (+0.3 points): sequence − token." in near


def test_comparisons_of_another_kind_are_listed_by_themselves() -> None:
    """Training seeds and start models are different units; the number of seeds may differ."""
    result = decided({"block": 3.0, "sequence": 3.0, "prefix": 3.0})
    comparisons = [c.model_copy(update={"statistic": "curve", "margin": 2.0}) for c in result.claim.comparisons[:2]]
    findings = [f._replace(n=n, unit="training seeds") for f, n in zip(result.findings, (4, 16), strict=False)]
    claim = result.claim.model_copy(update={"comparisons": [*comparisons, result.claim.comparisons[2]]})
    text = answer(result._replace(claim=claim, findings=[*findings, result.findings[2]]))
    curve = "points (full runs, area under the learning curve, margin 2, 4 to 16 training seeds); prefix − token"
    assert curve in text and text.endswith("points (one round, reward, margin 1, 8 start models).")


def test_a_question_without_records_says_so() -> None:
    claim = asked(("block", "token"))["grain"]
    result = ClaimResult("grain", claim, [], None, "nothing")
    assert answers_text([result, result]) == "Does it matter? No records.\nDoes it matter? No records."


@pytest.mark.parametrize("effect", [-3.0, 3.0])
def test_a_difference_counts_in_either_direction(effect: float) -> None:
    assert "Yes: block − token" in answer(decided({"block": effect}))
