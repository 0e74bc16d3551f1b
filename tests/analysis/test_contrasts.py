"""Differences within regimes, from records whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.analysis.contrasts import by_regime, contrasts
from policygrain.figures.findings import NOTHING, table
from policygrain.results.reader import StudyResults

from .records import effects, study_of, write

METHODS = {
    "none": {"base": "grpo", "ratio": "none", "clip": None},
    "token": {"base": "none", "ratio": "token"},
    "sequence": {"base": "none", "ratio": "sequence"},
}
MAP = {"methods": ["none", "token", "sequence"], "reference": "none", "vary": {"ahead": [0, 2]}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """On-policy all are equal. With older rollouts the token ratio is 9 points better and solves 3 of 12, not 6."""
    study = study_of(8, methods=METHODS, experiments={"map": MAP})
    plain, better = effects(), effects(token=9.0)

    def curve(arm: str, seed: int) -> list[float]:
        return list((better if "ahead" in arm else plain)(arm, seed))

    return write(study, tmp_path_factory.mktemp("map"), curve, {"token+ahead=2": 3})


def test_a_difference_is_decided_in_its_own_regime(results: StudyResults) -> None:
    found = contrasts(results)["map"]
    by_name = {c.pair.arm.name: c for c in found}
    assert set(by_name) == {"token", "token+ahead=2", "sequence", "sequence+ahead=2"}
    old = by_name["token+ahead=2"]
    assert old.decided and old.area.mean == pytest.approx(8.1, abs=0.5) and old.area.n == 8
    assert old.sampled is not None and old.sampled.mean == pytest.approx(-25)
    assert old.disagreement, "the area is higher and final accuracy lower"
    assert not by_name["token"].decided and not by_name["sequence+ahead=2"].decided
    assert old.p == pytest.approx(4 * old.area.p), "Holm's correction over four contrasts"


def test_a_regime_where_nothing_differs_says_so(results: StudyResults) -> None:
    regimes = by_regime(contrasts(results)["map"])
    assert [len(found) for found in regimes.values()] == [2, 2]
    frame, text = table(results)
    assert text.count(NOTHING) == 1 and "differ; endpoints disagree" in text
    rows = frame[frame["question"] == "map"]
    assert rows["of"].tolist() == ["token", "token+ahead=2", "sequence", "sequence+ahead=2"]


def test_a_study_without_a_reference_has_no_contrasts(tmp_path: Path) -> None:
    assert contrasts(write(study_of(2), tmp_path, effects())) == {}
