"""Differences of arms within a setting, from records whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis import measures
from policygrain.analysis.contrasts import contrasts, parts_text
from policygrain.figures.tables import contrasts as table
from policygrain.report.overview import comparisons
from policygrain.results import StudyResults
from policygrain.study import load_study

from ..support.made_up import make_up
from ..support.small import SMALL, write_study
from .records import effects, study_of, write

METHODS = {
    "none": {"base": "grpo", "ratio": "none", "clip": None},
    "token": {"base": "none", "ratio": "token"},
    "sequence": {"base": "none", "ratio": "sequence"},
}
MAP = {
    "methods": ["none", "token", "sequence"],
    "reference": "none",
    "compare": [["sequence", "token"]],
    "margin": 3.0,
    "vary": {"off_policy_steps": [0, 2]},
}
MINE: dict[str, Any] = SMALL | {
    "name": "mine",
    "seeds": [0, 1, 2, 3],
    "methods": {"pairs": {"base": "dapo", "clip": {"low": 0.1}}, "more": {"base": "pairs", "clip": {"low": 0.2}}},
    "experiments": {"headline": {"methods": ["grpo", "dapo", "pairs", "more"]}},
    "figures": ["dynamics", "benchmarks"],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """On-policy all are equal. With older rollouts the token ratio is 9 points better and solves 3 of 12, not 6."""
    study = study_of(8, methods=METHODS, experiments={"map": MAP})
    plain, better = effects(), effects(token=9.0)

    def curve(arm: str, seed: int) -> list[float]:
        return list((better if "off_policy_steps" in arm else plain)(arm, seed))

    return write(study, tmp_path_factory.mktemp("map"), curve, {"token+off_policy_steps=2": 3})


def test_a_difference_is_decided_in_its_own_setting(results: StudyResults) -> None:
    found = {(c.pair.arm.name, c.pair.reference.name): c for c in contrasts(results)}
    assert set(found) == {
        ("token", "none"),
        ("token+off_policy_steps=2", "none+off_policy_steps=2"),
        ("sequence", "none"),
        ("sequence+off_policy_steps=2", "none+off_policy_steps=2"),
        ("sequence", "token"),
        ("sequence+off_policy_steps=2", "token+off_policy_steps=2"),
        ("none+off_policy_steps=2", "none"),  # what staleness itself costs
    }
    old = found["token+off_policy_steps=2", "none+off_policy_steps=2"]
    assert old.decided and old.auc.mean == pytest.approx(8.1, abs=0.5) and old.auc.n == 8
    assert old.sampled is not None and old.sampled.mean == pytest.approx(-25)
    assert old.disagreement, "the area is higher and final accuracy lower"
    assert (
        not found["token", "none"].decided and found["sequence+off_policy_steps=2", "token+off_policy_steps=2"].decided
    )
    tested = [c for c in found.values() if not c.identical]
    clearest = min(tested, key=lambda c: c.auc.p)
    assert clearest.p == pytest.approx(len(tested) * clearest.auc.p), "Holm's correction"


def test_the_table_has_both_endpoints_length_and_the_outcome(results: StudyResults) -> None:
    frame, text = table(results)
    assert len(frame) == 7 and text.count("differ; endpoints disagree") == 2
    rows = {(row["of"], row["than"]): row for row in frame.to_dict("records")}
    old = rows["token+off_policy_steps=2", "none+off_policy_steps=2"]
    assert (old["sampled_mean"], old["length_mean"], old["outcome"]) == (pytest.approx(-25), 0, "differ")
    assert rows["sequence+off_policy_steps=2", "none+off_policy_steps=2"]["outcome"] == "differ by less than 3 points"
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in text.splitlines() if line.startswith("|")]
    (found,) = (
        auc for name, setting, auc in cells if (name, setting[:13]) == ("token ratio − no ratio", "rollouts 2 st")
    )
    assert found.startswith("+8.")
    assert cells[-1][0] == "no ratio: 2 steps old − on-policy"


def test_equal_areas_are_said_to_be_identical(tmp_path: Path) -> None:
    study = study_of(3, methods=METHODS, experiments={"map": MAP | {"vary": {}}}, training={"updates_per_batch": 1})
    found = write(study, tmp_path, lambda arm, seed: [0.3, 0.4 + 0.01 * seed] * 2)
    assert {c.outcome for c in contrasts(found)} == {"identical"} and "identical" in table(found)[1]


def test_a_study_without_comparisons_has_no_contrasts(tmp_path: Path) -> None:
    alone = {"only": {"methods": ["grpo", "dapo"]}}
    results = write(study_of(2, experiments=alone), tmp_path, effects())
    assert contrasts(results) == [] and "compares no methods" in table(results)[1]


def test_the_headline_s_methods_are_compared_as_wholes_and_corrected_apart(tmp_path: Path) -> None:
    found = contrasts(write(study_of(4), tmp_path, effects(tepo=9.0)))
    assert {c.pair.reference.method_name for c in found} == {"grpo"} and all(c.pair.whole for c in found)
    assert len(found) == 6, "three methods with two settings each"
    (tepo,) = (c for c in found if c.pair.arm.name == "tepo+updates_per_batch=16")
    assert tepo.decided and "aggregation" in parts_text(study_of(4), tepo.pair)


@pytest.mark.parametrize("removed", ["metrics.jsonl", "summary.json"], ids=["no records", "not ended"])
def test_missing_records_count_in_the_correction(removed: str, tmp_path: Path) -> None:
    """A run that has not ended has none."""
    study = study_of(8, methods=METHODS, experiments={"map": MAP | {"vary": {}}})
    found = write(study, tmp_path, effects(token=9.0))
    complete = {c.pair.arm.name: c.p for c in contrasts(found) if c.pair.reference.name == "none"}
    for path in tmp_path.glob(f"runs/sequence/*/{removed}"):
        path.unlink()
    (left,) = contrasts(StudyResults(found.folder.path))
    assert left.p == complete["token"]


def test_an_only_initial_model_is_compared_with_every_seed(tmp_path: Path) -> None:
    """Of 12 problems it solves 3, and the seeds 4, 6 and 8: 25 points on average, over three seeds."""
    study = study_of(3, experiments={"headline": {"methods": ["grpo", "tepo"]}}, model={"starts": 1})
    there = make_up(study, tmp_path / "one", {})
    for model, right in {"start/seed0": 3, "runs/grpo/seed0": 4, "runs/grpo/seed1": 6, "runs/grpo/seed2": 8}.items():
        path = there / model / "evaluation" / "records.json"
        record = json.loads(path.read_text())
        for row in record["records"]:
            row["per_problem"] = [float(i < right) for i in range(row["problems"])]
            row["accuracy"] = right / row["problems"]
        path.write_text(json.dumps(record))
    d = measures.accuracy_difference(StudyResults(there), "grpo", "start")
    assert d.mean == pytest.approx(25) and (d.n, d.unit) == (3, "training seeds")


def test_the_overview_compares_own_methods_with_their_bases(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path / "mine.yaml", MINE))
    said = " ".join(comparisons(StudyResults(make_up(study, tmp_path / "mine", {"pairs": 9, "more": 9}))))
    # 9 instead of 6 of 12 problems
    assert "pairs − DAPO: +0.0 [+0.0, +0.0] points in training (identical); final accuracy +25.0 [" in said
    assert "more − pairs: +0.0 [" in said
