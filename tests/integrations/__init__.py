"""Tests of integrations, and what each refuses."""

from pathlib import Path
from typing import Any

import yaml

from policygrain import method

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())


def objective_of(chosen: Any) -> Any:
    """A method, where its changes of a preset are given."""
    if not isinstance(chosen, dict):
        return chosen
    return method(chosen["base"], **{key: value for key, value in chosen.items() if key != "base"})
