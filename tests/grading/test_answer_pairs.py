"""Right and wrong answers that are computed from gold answers of every form."""

from __future__ import annotations

import pytest

from policygrain.grading import MathGrader

from .answer_pairs import pairs

PAIRS = pairs(each=2)


def test_there_are_enough_wrong_answers_of_every_kind() -> None:
    assert sum(not pair.right for pair in PAIRS) >= 300
    for kind in {pair.kind for pair in PAIRS}:
        assert {pair.right for pair in PAIRS if pair.kind == kind} == {True, False}, kind


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_computed_answers(right: bool) -> None:
    chosen = [pair for pair in PAIRS if pair.right is right]
    with MathGrader(workers=2, seconds=3) as grader:
        outcomes = grader.compare([pair.gold for pair in chosen], [pair.answer for pair in chosen])
    pairs_with_outcomes = zip(chosen, outcomes, strict=True)
    different = [f"{p.gold} <- {p.answer}: {o}" for p, o in pairs_with_outcomes if (o == "correct") != right]
    assert not different
    assert not {"timeout", "error"} & {*outcomes}
