"""Numbers as they are written."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.grading.numeric import Number, parse_number, unbraced


@given(st.integers(-(10**30), 10**30), st.sampled_from([",", " "]))
def test_digits_may_be_grouped_by_threes(value: int, separator: str) -> None:
    assert parse_number(f"{value:,}".replace(",", separator)) == Number(Fraction(value), False)


@given(st.lists(st.integers(0, 999), min_size=2, max_size=4), st.sampled_from([",", " ", ", "]))
def test_other_groups_are_no_number(parts: list[int], separator: str) -> None:
    """Unless all but the first have three digits, and the first does not begin with a zero that nobody would write."""
    text = separator.join(map(str, parts))
    if separator == ", " or any(len(str(part)) != 3 for part in parts[1:]):
        assert parse_number(text) is None


@given(st.integers(-999, 999), st.integers(1, 99))
def test_a_fraction_has_its_value(top: int, bottom: int) -> None:
    for text in (f"{top}/{bottom}", f"{'-' * (top < 0)}\\frac{{{abs(top)}}}{{{bottom}}}"):
        assert parse_number(text) == Number(Fraction(top, bottom), False)


@pytest.mark.parametrize("text", ["5/0", "", "-", "1..2", "1.2.3", "--1", "1e", "\\frac{1}{0}", "1e5000", "1" * 41])
def test_no_number(text: str) -> None:
    assert parse_number(text) is None


@given(st.text("{}a ", max_size=10))
def test_outer_braces(text: str) -> None:
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


def test_outer_braces_are_found_in_linear_time() -> None:
    begin = time.monotonic()
    assert unbraced("{" * 100_000 + "3" + "}" * 100_000) == "3"
    assert time.monotonic() - begin < 10
