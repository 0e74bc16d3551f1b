"""Two studies side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policygrain.analysis.claims import ClaimResult
from policygrain.analysis.ledger import load_claims
from policygrain.analysis.studies import ClaimPair, compare_claims, compare_studies, replication_text, shared_seeds
from policygrain.analysis.verdicts import Verdict
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.study import Study

from ..support.made_up import make_up
from ..support.small import small_study
from .records import effects, study_of, write


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


# ---- claims ---------------------------------------------------------------------------------------------------------

SMALLER: Verdict = "smaller than published"


def result(verdict: Verdict | None) -> ClaimResult:
    name, claim = next(iter(load_claims().items()))
    return ClaimResult(name, claim, [], verdict)


@pytest.mark.parametrize(
    ("one", "two", "agreement"),
    [
        ("holds", "holds", "same"),
        ("opposite", "opposite", "same"),
        ("opposite", SMALLER, "differs"),
        ("holds", SMALLER, "differs"),
        ("holds", "opposite", "contradicts"),
        ("holds", "undecided", "open"),
        (None, "holds", "open"),
        (None, None, "open"),
    ],
)
def test_agreement(one: Verdict | None, two: Verdict | None, agreement: str) -> None:
    assert ClaimPair("claim", result(one), result(two)).agreement == agreement
    assert ClaimPair("claim", result(two), result(one)).agreement == agreement


@pytest.mark.slow
def test_a_replication_with_other_seeds_is_compared_by_its_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TEPO is right on three problems of twelve fewer in one study, and on three more in the other."""
    methods = ["grpo", "dapo", "tepo", "tepo_dynamic"]
    plan = {"methods": {"tepo_dynamic": {"base": "tepo"}}, "experiments": {"headline": {"methods": methods}}}
    one = write(study_of(16, **plan), tmp_path / "one", effects(), dict.fromkeys(methods[2:], 3))
    two = write(study_of(range(20, 36), **plan), tmp_path / "two", effects(), dict.fromkeys(methods[2:], 9))
    assert shared_seeds(one, two) == []
    found = {pair.name: pair for pair in compare_claims(one, two)}
    assert found["tepo_best_average"].agreement == found["tepo_most_benchmarks"].agreement == "contradicts"
    assert found["tepo_stability"].agreement == found["mpo_block_size"].agreement == "open"
    folders = [str(results.folder.path) for results in (one, two)]
    assert main(["compare", *folders, "--out", str(tmp_path / "table.csv")]) == 0
    text = capsys.readouterr().out
    assert "No seed is in both studies" in text and "not independent" not in text
    assert (tmp_path / "table.csv").read_text().startswith("arm,benchmark,n,unit,change")
    *_, verdicts, intervals = text.splitlines()
    contradicting = sum(pair.agreement == "contradicts" for pair in found.values())
    assert verdicts.startswith(f"Of {len(found)} claims: ") and f"{contradicting} contradict" in verdicts
    both = [pair for p in found.values() for pair in p.findings]
    assert intervals.startswith(f"Of {len(both)} comparisons that both have, decided or not: ")
    far = [p for name in ("tepo_best_average", "tepo_most_benchmarks") for p in found[name].findings]
    assert len(far) == 4 and not any(a.effect * b.effect > 0 or a.high >= b.low for a, b in far)
    line = next(line for line in text.splitlines() if "tepo_best_average" in line)
    assert line.split(maxsplit=2)[1:] == ["contradicts", "opposite | holds"]


def test_studies_with_common_seeds_are_said_not_to_be_independent(tmp_path: Path) -> None:
    one = write(study_of(3), tmp_path / "one", effects())
    two = write(study_of([2, 3]), tmp_path / "two", effects())
    assert "Both studies have seed 2: they are not independent" in replication_text(compare_claims(one, two), one, two)
    frame, text = compare_studies(one.folder.path, two.folder.path)
    assert len(frame) and text.index("accuracies are in both studies") < text.index("not independent")


def test_start_models_count_as_shared_seeds(tmp_path: Path) -> None:
    """No run of the first study has seed 3, but its estimators and rounds are measured on initial model 3."""
    experiments = {"headline": {"methods": ["grpo"], "seeds": [5]}}
    one = write(study_of([2, 3], experiments=experiments), tmp_path / "one", effects())
    two = write(study_of([3]), tmp_path / "two", effects())
    assert shared_seeds(one, two) == [3]
