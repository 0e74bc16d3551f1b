"""What every section of a study file accepts."""

import math

import pytest
from pydantic import ValidationError

from policygrain.study.declare import Section


class Example(Section):
    number: float = 1.0
    pair: tuple[float, float] | None = None
    word: str = ""
    either: float | str = ""
    count: int = 1


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1.e-3", ".1e-2"])
def test_numbers_that_yaml_takes_for_text(text):
    """YAML 1.1 wants a point before the exponent: yaml.safe_load("1e-3") is "1e-3"."""
    assert Example(number=text).number == 0.001
    assert Example(pair=(text, 2)).pair == (0.001, 2.0)
    assert Example(word=text).word == Example(either=text).either == text


@pytest.mark.parametrize("wrong", ["0.5", "e-3", "1e", "", True, math.nan, math.inf, None])
def test_nothing_else_is_taken_for_a_number(wrong):
    with pytest.raises(ValidationError):
        Example(number=wrong)


@pytest.mark.parametrize("wrong", ["1e3", 1.0, True])
def test_a_count_is_a_whole_number(wrong):
    with pytest.raises(ValidationError):
        Example(count=wrong)
