"""Verdicts on claims, from numbers whose answer is known."""

from __future__ import annotations

from policygrain.analysis.claims import decide_claims, load_claims
from policygrain.analysis.statistics import decide
from policygrain.errors import UserError


def test_a_claim_needs_all_its_comparisons_and_falls_with_one() -> None:
    assert decide([0.01, 0.04], [0.99, 0.9]) == "supported"
    assert decide([0.01, 0.5], [0.99, 0.5]) == "undecided at this scale"
    assert decide([0.01, 0.99], [0.99, 0.01]) == "not supported"


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
