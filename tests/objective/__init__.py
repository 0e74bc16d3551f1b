"""Tests of objectives, and what is worked by hand for them."""

import math
from pathlib import Path
from typing import Any

import yaml

NAMES = {"W": math.exp(0.5), "a": 0.1, "b": -0.2, "c": 0.4, "d": 0.3}
NAMES |= {name.upper(): math.exp(NAMES[name]) for name in "abcd"}


def worked(value: Any) -> Any:
    """``value`` with its formulas as numbers; a text without a parenthesis or a star is none."""
    if isinstance(value, dict):
        return {key: worked(x) for key, x in value.items()}
    if isinstance(value, list):
        return [worked(x) for x in value]
    formula = isinstance(value, str) and any(sign in value for sign in "(*")
    return eval(value, vars(math) | NAMES) if formula else value


BY_HAND = worked(yaml.safe_load(Path(__file__).with_name("numbers.yaml").read_text()))
