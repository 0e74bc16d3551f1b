"""The study files with the settings of published papers."""

from __future__ import annotations

import pytest

from policygrain.study import Study, load_study

PAPERS = ("tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b")

papers = pytest.mark.parametrize("name", PAPERS)


def paper(name: str) -> Study:
    """The study; whether its problem sets are there is not checked."""
    return load_study(f"studies/{name}.yaml")
