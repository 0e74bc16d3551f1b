"""The numeric grader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.grading import NumericGrader
from policygrain.grading.extraction import boxed


@pytest.mark.parametrize(
    ("gold", "response", "outcome"),
    [
        ("36", "8+28=36;\\boxed{36}", "correct"),
        ("36", "\\boxed{35} no: \\boxed{36}, I am sure", "correct"),
        ("36", "\\boxed{36} no: \\boxed{35}", "incorrect"),
        ("36", "36", "unparsable"),
        ("36", "\\boxed{36", "unparsable"),
        ("36", "\\boxed{}", "unparsable"),
        ("36", "\\boxed{thirty-six}", "unparsable"),
        ("1,234", "\\boxed{1234.0}", "correct"),
        ("0.5", "\\boxed{1/2}", "correct"),
        ("5", "\\boxed{5/0}", "unparsable"),
        ("\\frac{1}{2}", "so \\boxed{\\frac{1}{2}}", "correct"),
        ("x + 1", "\\boxed{x+1}", "correct"),
        ("007", "\\boxed{7}", "correct"),
    ],
)
def test_outcomes(gold: str, response: str, outcome: str) -> None:
    assert NumericGrader().grade([gold], [response]) == [outcome]


@given(st.text(max_size=300))
def test_any_text_gets_an_outcome(text: str) -> None:
    assert NumericGrader().grade(["1"], [text]) != ["error"]
    assert NumericGrader().grade(["1"], [f"{text}\\boxed{{1}}"]) == ["correct"]


def test_braces_are_balanced() -> None:
    assert boxed("\\boxed{\\frac{1}{2}} and {more}") == "\\frac{1}{2}"
    assert boxed("\\boxed{a} then \\boxed{b") == "a"
