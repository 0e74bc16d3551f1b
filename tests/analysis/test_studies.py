"""Two studies side by side."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policygrain.analysis.studies import compare_studies
from policygrain.errors import UserError
from policygrain.study import load_study

from ..support.made_up import make_up


def test_two_studies_side_by_side(tmp_path: Path, in_root: Path) -> None:
    study = load_study("studies/smoke.yaml")
    results = make_up(study, tmp_path / "one", {"start": 0, "tepo": 9})
    other = make_up(study, tmp_path / "other", {"start": 0, "tepo": 9, "grpo": 9})
    frame, text = compare_studies(results, other)
    moved = frame.set_index(["arm", "benchmark"])["change"]
    assert moved["grpo", "count"] == pytest.approx(25) and moved["tepo", "count"] == 0
    assert "6 numbers in both; 4 identical; 2 moved beyond noise" in text
    assert len(re.findall(r"^\* grpo +\w+ + \+25\.0", text, flags=re.M)) == 2


def test_studies_without_a_common_number_are_refused(tmp_path: Path, in_root: Path) -> None:
    study = load_study("studies/smoke.yaml")
    evaluation = study.evaluation.model_copy(
        update={"benchmarks": [b.model_copy(update={"name": f"other_{b.name}"}) for b in study.evaluation.benchmarks]}
    )
    a = make_up(study, tmp_path / "a", {})
    b = make_up(study.model_copy(update={"evaluation": evaluation}), tmp_path / "b", {})
    with pytest.raises(UserError, match="no arm and benchmark that both have"):
        compare_studies(a, b)
