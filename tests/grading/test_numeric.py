"""Numbers as they are written, and the numeric grader."""

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.grading import NumericGrader
from policygrain.grading.extraction import boxed
from policygrain.grading.numeric import Number, parse_number, unbraced

from . import read

CASES = read("numeric.jsonl")


def test_outcomes():
    outcomes = NumericGrader().grade([c["gold"] for c in CASES], [c["response"] for c in CASES])
    assert [c for c, outcome in zip(CASES, outcomes, strict=True) if outcome != c["outcome"]] == []


@given(st.text(max_size=300))
def test_any_text_gets_an_outcome(text):
    assert NumericGrader().grade(["1"], [text]) != ["error"]
    assert NumericGrader().grade(["1"], [f"{text}\\boxed{{1}}"]) == ["correct"]


def simple(text: str) -> Fraction | None:
    """The number in an answer in the characters of the synthetic problems."""
    text = text.strip().strip("$").replace(",", "").replace(" ", "").removesuffix(".")
    if not re.fullmatch(r"[-+]?\d{1,40}(?:\.\d{1,40})?(?:/\d{1,40})?", text):
        return None
    top, _, bottom = text.partition("/")
    return None if bottom and not int(bottom) else Fraction(top) / (int(bottom) if bottom else 1)


@given(st.text("0123456789-+*/=.()x{}% ", max_size=12), st.integers(-99, 999))
def test_answers_of_synthetic_problems_are_read_simply_unless_digits_are_separated(text, gold):
    if boxed(f"\\boxed{{{text}}}") != text or re.search(r"\d +\d", text):
        return
    found = simple(text)
    expected = "unparsable" if found is None else "correct" if found == gold else "incorrect"
    assert NumericGrader().grade([str(gold)], [f"\\boxed{{{text}}}"]) == [expected]


@given(st.integers(-(10**30), 10**30), st.sampled_from([",", " "]))
def test_digits_may_be_grouped_by_threes(value, separator):
    assert parse_number(f"{value:,}".replace(",", separator)) == Number(Fraction(value), False)


@given(st.lists(st.integers(0, 999), min_size=2, max_size=4), st.sampled_from([",", " ", ", "]))
def test_other_groups_are_no_number(parts, separator):
    text = separator.join(map(str, parts))
    if separator == ", " or any(len(str(part)) != 3 for part in parts[1:]):
        assert parse_number(text) is None


@given(st.integers(-999, 999), st.integers(1, 99))
def test_a_fraction_has_its_value(top, bottom):
    for text in (f"{top}/{bottom}", f"{'-' * (top < 0)}\\frac{{{abs(top)}}}{{{bottom}}}"):
        assert parse_number(text) == Number(Fraction(top, bottom), False)


@pytest.mark.parametrize("text", ["5/0", "", "-", "1..2", "1.2.3", "--1", "1e", "\\frac{1}{0}", "1e5000", "1" * 41])
def test_no_number(text):
    assert parse_number(text) is None


@given(st.text("{}a ", max_size=10))
def test_outer_braces(text):
    """As the definition says it, in quadratic time."""
    expected = text
    while len(expected) > 1 and expected[0] == "{" and expected[-1] == "}":
        inner, depth = expected[1:-1], 0
        for character in inner:
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth < 0:
                break
        if depth != 0:
            break
        expected = inner.strip()
    assert unbraced(text) == expected


def test_outer_braces_are_found_in_linear_time():
    begin = time.monotonic()
    assert unbraced("{" * 100_000 + "3" + "}" * 100_000) == "3"
    assert time.monotonic() - begin < 10
