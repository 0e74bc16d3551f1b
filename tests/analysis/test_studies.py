"""Two studies side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policygrain.analysis.studies import compare_studies
from policygrain.errors import UserError
from policygrain.study import Study

from ..support.made_up import make_up
from ..support.small import small_study


def two_benchmarks() -> Study:
    benchmarks = [{"name": name, "source": name, "size": 12} for name in ("running_total", "count")]
    evaluation = {"sampling": {"n": 2, "temperature": 1.0, "max_tokens": 24}, "benchmarks": benchmarks}
    return small_study(seeds=[0, 1], experiments={"headline": {"methods": ["grpo", "tepo"]}}, evaluation=evaluation)


def test_two_studies_side_by_side(tmp_path: Path) -> None:
    study = two_benchmarks()
    results = make_up(study, tmp_path / "one", {"start": 0, "tepo": 9})
    other = make_up(study, tmp_path / "other", {"start": 0, "tepo": 9, "grpo": 9})
    frame, text = compare_studies(results, other)
    moved = frame.set_index(["arm", "benchmark"])["change"]
    assert moved["grpo", "count"] == pytest.approx(25) and moved["tepo", "count"] == 0
    assert "6 accuracies are in both studies, 4 of them identical." in text
    assert "95% intervals over 2 training seeds" in text and "Holm's correction over all 6 comparisons" in text
    # Two seeds exclude 0 each time; after correction for six comparisons they are not enough.
    assert "2 intervals exclude 0" in text and "0 differences (*)" in text
    assert len(re.findall(r"^  grpo +\w+ + \+25\.0 \[\+", text, flags=re.M)) == 2
    assert frame["identical"].sum() == 4 and set(frame["unit"]) == {"training seeds"}


def test_other_problems_are_not_compared(tmp_path: Path) -> None:
    study = two_benchmarks()
    one, two = (make_up(study, tmp_path / name, {}) for name in ("one", "two"))
    for record in (two / "runs" / "grpo").glob("seed*/evaluation/records.json"):
        content = json.loads(record.read_text())
        first = content["records"][0]
        first["per_problem"], first["problems"] = first["per_problem"][:-1], first["problems"] - 1
        record.write_text(json.dumps(content))
    frame, text = compare_studies(one, two)
    assert len(frame) == 5 and f"Not compared, other seeds or problems: grpo {first['benchmark']}." in text


def test_studies_without_a_common_number_are_refused(tmp_path: Path) -> None:
    study = two_benchmarks()
    evaluation = study.evaluation.model_copy(
        update={"benchmarks": [b.model_copy(update={"name": f"other_{b.name}"}) for b in study.evaluation.benchmarks]}
    )
    a = make_up(study, tmp_path / "a", {})
    b = make_up(study.model_copy(update={"evaluation": evaluation}), tmp_path / "b", {})
    with pytest.raises(UserError, match="no arm and benchmark that both have on the same seeds and problems"):
        compare_studies(a, b)
