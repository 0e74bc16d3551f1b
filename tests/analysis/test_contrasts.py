"""Differences of arms within a setting, from records whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.analysis.contrasts import contrasts, parts_text
from policygrain.figures.tables import contrasts as table
from policygrain.report.overview import comparisons
from policygrain.results import StudyResults

from ..support.made_up import make_up
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
ON_POLICY = {"map": MAP | {"vary": {}}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """On-policy all are equal. With older rollouts the token ratio is 9 points better and solves 3 of 12, not 6."""
    plain, better = effects(), effects(token=9.0)
    study = study_of(8, methods=METHODS, experiments={"map": MAP})
    folder = tmp_path_factory.mktemp("map")
    right = {"token+off_policy_steps=2": 3}
    return write(study, folder, lambda arm, seed: (better if "off_policy" in arm else plain)(arm, seed), right)


def test_a_difference_is_decided_in_its_own_setting(results: StudyResults) -> None:
    found = {(c.pair.arm.name, c.pair.reference.name): c for c in contrasts(results)}
    old = "+off_policy_steps=2"
    pairs = [("token", "none"), ("sequence", "none"), ("sequence", "token")]
    # The last is what staleness itself costs.
    assert set(found) == {*pairs, *((a + old, b + old) for a, b in pairs), (f"none{old}", "none")}
    token = found[f"token{old}", f"none{old}"]
    assert token.decided and token.auc.mean == pytest.approx(8.1, abs=0.5) and token.auc.n == 8
    assert token.sampled is not None and token.sampled.mean == pytest.approx(-25)
    assert token.disagreement, "the area is higher and final accuracy lower"
    assert not found["token", "none"].decided and found[f"sequence{old}", f"token{old}"].decided
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
    token = [auc for name, where, auc in cells if name == "token ratio − no ratio" and where.startswith("rollouts 2")]
    assert len(token) == 1 and token[0].startswith("+8.")
    assert cells[-1][0] == "no ratio: 2 steps old − on-policy"


def test_equal_areas_are_identical_and_a_study_without_comparisons_has_none(tmp_path: Path) -> None:
    study = study_of(3, methods=METHODS, experiments=ON_POLICY, training={"updates_per_batch": 1})
    found = write(study, tmp_path / "equal", lambda arm, seed: [0.3, 0.4 + 0.01 * seed] * 2)
    assert {c.outcome for c in contrasts(found)} == {"identical"} and "identical" in table(found)[1]
    alone = study_of(2, experiments={"only": {"methods": ["grpo", "dapo"]}})
    none = write(alone, tmp_path / "none", effects())
    assert contrasts(none) == [] and "compares no methods" in table(none)[1]


def test_the_headline_s_methods_are_compared_as_wholes_and_corrected_apart(tmp_path: Path) -> None:
    found = contrasts(write(study_of(4), tmp_path, effects(tepo=9.0)))
    assert {c.pair.reference.method_name for c in found} == {"grpo"} and all(c.pair.whole for c in found)
    assert len(found) == 6, "three methods with two settings each"
    (tepo,) = (c for c in found if c.pair.arm.name == "tepo+updates_per_batch=16")
    assert tepo.decided and "aggregation" in parts_text(study_of(4), tepo.pair)


@pytest.mark.parametrize("removed", ["metrics.jsonl", "summary.json"], ids=["no records", "not ended"])
def test_missing_records_count_in_the_correction(removed: str, tmp_path: Path) -> None:
    """A run that has not ended has none."""
    found = write(study_of(8, methods=METHODS, experiments=ON_POLICY), tmp_path, effects(token=9.0))
    complete = {c.pair.arm.name: c.p for c in contrasts(found) if c.pair.reference.name == "none"}
    for path in tmp_path.glob(f"runs/sequence/*/{removed}"):
        path.unlink()
    (left,) = contrasts(StudyResults(found.folder.path))
    assert left.p == complete["token"]


def test_the_overview_compares_own_methods_with_their_bases(tmp_path: Path) -> None:
    """9 instead of 6 of 12 problems."""
    own = {"pairs": {"base": "dapo", "clip": {"low": 0.1}}, "more": {"base": "pairs", "clip": {"low": 0.2}}}
    study = study_of(4, methods=own, experiments={"headline": {"methods": ["grpo", "dapo", *own]}})
    said = " ".join(comparisons(StudyResults(make_up(study, tmp_path, dict.fromkeys(own, 9)))))
    assert "pairs − DAPO: +0.0 [+0.0, +0.0] points in training (identical); final accuracy +25.0 [" in said
    assert "more − pairs: +0.0 [" in said
