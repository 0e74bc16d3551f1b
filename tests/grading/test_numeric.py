"""The numeric grader."""

from __future__ import annotations

import re
from fractions import Fraction

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


# The parser of the grader's first version, for answers in the characters of the synthetic problems.
def first_version(text: str) -> Fraction | None:
    text = text.strip().strip("$").replace(",", "").replace(" ", "").removesuffix(".")
    if not re.fullmatch(r"[-+]?\d{1,40}(?:\.\d{1,40})?(?:/\d{1,40})?", text):
        return None
    top, _, bottom = text.partition("/")
    return None if bottom and not int(bottom) else Fraction(top) / (int(bottom) if bottom else 1)


@given(st.text("0123456789-+*/=.()x{}% ", max_size=12), st.integers(-99, 999))
def test_outcomes_are_those_of_the_first_version_unless_digits_are_separated(text: str, gold: int) -> None:
    """Training runs that were made with it stay comparable."""
    if boxed(f"\\boxed{{{text}}}") != text or re.search(r"\d +\d", text):
        return
    found = first_version(text)
    expected = "unparsable" if found is None else "correct" if found == gold else "incorrect"
    assert NumericGrader().grade([str(gold)], [f"\\boxed{{{text}}}"]) == [expected]


@pytest.mark.parametrize(("gold", "answer"), [("12", "1,2"), ("123", "1 2 3"), ("1234", "12,34"), ("12", "1, 2")])
def test_several_numbers_are_not_one(gold: str, answer: str) -> None:
    assert NumericGrader().grade([gold], [f"\\boxed{{{answer}}}"]) == ["incorrect"]
    assert NumericGrader().grade(["1234"], ["\\boxed{1 234}"]) == ["correct"]
