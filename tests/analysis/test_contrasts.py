"""Differences within regimes, from records whose numbers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.contrasts import by_regime, contrasts
from policygrain.analysis.wording import abstract, nothing_text, pair_text, regime_text, sentences
from policygrain.cli import main
from policygrain.errors import NoResults
from policygrain.figures import TABLES
from policygrain.figures.catalogue import draw, figure
from policygrain.figures.tables import findings as table
from policygrain.report.page import write_report
from policygrain.results import StudyResults
from policygrain.study import load_study, parse_study

from ..conftest import ROOT
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


def test_a_difference_is_decided_in_its_own_regime(results: StudyResults) -> None:
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
    assert old.decided and old.area.mean == pytest.approx(8.1, abs=0.5) and old.area.n == 8
    assert old.sampled is not None and old.sampled.mean == pytest.approx(-25)
    assert old.disagreement, "the area is higher and final accuracy lower"
    assert (
        not found["token", "none"].decided and found["sequence+off_policy_steps=2", "token+off_policy_steps=2"].decided
    )
    tested = [c for c in found.values() if not c.identical]
    clearest = min(tested, key=lambda c: c.area.p)
    assert clearest.p == pytest.approx(len(tested) * clearest.area.p), "Holm's correction"


def test_a_small_difference_is_said_only_where_something_is_shown_to_matter(results: StudyResults) -> None:
    frame, text = table(results)
    assert len(frame) == 7 and text.count("differ; endpoints disagree") == 2
    assert "not even leaving the ratio out" in text, "on-policy nothing differs"
    small = [line for line in text.splitlines() if line.startswith("|") and "sequence ratio − no ratio" in line]
    assert [line.endswith("| not shown to differ |") for line in small] == [True, False], "only with old rollouts"
    assert "differ by less than 3 points" in small[1]


def test_regimes_and_pairs_in_words(results: StudyResults) -> None:
    regimes = by_regime(results.study, contrasts(results))
    assert [regime_text(regime) for regime in regimes] == ["on-policy", "rollouts 2 steps old"]
    assert [len(group) for group in regimes.values()] == [3, 4]
    names = {pair_text(results.study, c.pair, str) for group in regimes.values() for c in group}
    assert names == {"token − none", "sequence − none", "sequence − token", "none: 2 steps old − on-policy"}
    said = sentences(results, contrasts(results))
    assert len(said) == 2 and said[1].startswith("Rollouts 2 steps old: token − none +8")


def test_equal_areas_are_said_to_be_identical(tmp_path: Path) -> None:
    study = study_of(3, methods=METHODS, experiments={"map": MAP | {"vary": {}}}, training={"updates_per_batch": 1})
    found = write(study, tmp_path, lambda arm, seed: [0.3, 0.4 + 0.01 * seed] * 2)
    (sentence,) = sentences(found, contrasts(found))
    assert "Equal validation accuracies, since every ratio is 1: " in sentence and "identical" in table(found)[1]


def test_a_regime_without_a_difference_says_that_nothing_is_shown(tmp_path: Path) -> None:
    study = study_of(3, methods=METHODS, experiments={"map": MAP | {"vary": {}}})
    noise = {"none": 0.0, "token": 0.01, "sequence": -0.01}
    found = write(study, tmp_path, lambda arm, seed: [0.3, 0.4 + noise.get(arm, 0) * (-1) ** seed] * 2)
    compared = contrasts(found)
    assert "nothing is shown to matter here, not even leaving the ratio out" in sentences(found, compared)[0]
    with_ratios = [c for c in compared if c.pair.reference.method_name != "none"]
    assert with_ratios and "ratio" not in nothing_text(study, with_ratios)
    assert "by less than" not in table(found)[1], "rule 3"


def test_a_study_without_comparisons_has_no_contrasts(tmp_path: Path) -> None:
    results = write(study_of(2), tmp_path, effects())
    assert contrasts(results) == [] and "compares no methods" in table(results)[1]


@pytest.mark.parametrize("removed", ["metrics.jsonl", "summary.json"], ids=["no records", "not ended"])
def test_missing_records_count_in_the_correction(removed: str, tmp_path: Path) -> None:
    """A run that has not ended has none. Eight runs of GRPO are in no comparison."""
    study = study_of(8, methods=METHODS, experiments={"map": MAP | {"vary": {}}})
    found = write(study, tmp_path, effects(token=9.0))
    complete = {c.pair.arm.name: c.p for c in contrasts(found) if c.pair.reference.name == "none"}
    for path in tmp_path.glob(f"runs/sequence/*/{removed}"):
        path.unlink()
    rest = StudyResults(found.folder.path)
    (left,) = contrasts(rest)
    assert left.p == complete["token"] and "over the 3 planned comparisons" in table(rest)[1]
    assert "were trained in 24 runs, 8 seeds each" in abstract(rest, [], [left], [], str)[0]


def test_a_pair_of_two_experiments_is_in_both_figures_with_its_accuracy(tmp_path: Path) -> None:
    """The earlier experiment is not evaluated, and has two arms of the map."""
    vary = {"off_policy_steps": [0, 2], "learning_rate": ["1e-3", "2e-3"]}  # as YAML reads them: text
    early = {"methods": ["none", "token"], "reference": "none", "evaluate": False}
    study = study_of(2, methods=METHODS, experiments={"early": early, "map": MAP | {"vary": vary}}, figures=["phase"])
    found = write(study, tmp_path, effects(token=9.0))
    assert figure("phase", found).axes and all(c.sampled for c in contrasts(found))
    for path in tmp_path.glob("runs/token+*/*/summary.json"):
        path.unlink()
    with pytest.raises(NoResults, match=r"no seed of token\+\S+ and none\+\S+ has been trained"):
        figure("phase", StudyResults(tmp_path))


def test_the_overview_compares_own_methods_with_their_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "mine.yaml", MINE)
    make_up(load_study(study), tmp_path / "results" / "mine", {"pairs": 9, "more": 9})
    monkeypatch.chdir(tmp_path)
    assert main(["claims", "mine.yaml", "--brief"]) == 0
    brief = " ".join(capsys.readouterr().out.split())
    # 9 instead of 6 of 12 problems
    assert "pairs − DAPO: +0.0 [+0.0, +0.0] points in training (identical); final accuracy +25.0 [" in brief
    assert "more − pairs: +0.0 [" in brief


def test_the_report_begins_with_own_methods_and_benchmarks(tmp_path: Path) -> None:
    results = StudyResults(make_up(parse_study(MINE, Path("study.yaml")), tmp_path / "mine", {"pairs": 9}))
    for name in (*results.study.figures, *TABLES):
        draw(name, results)
    write_report(results, ROOT / "workflow" / "report", out := tmp_path / "report.html")
    page = out.read_text()
    places = [page.index(text) for text in ('id="benchmarks"', "pairs − DAPO: ", 'id="dynamics"')]
    assert places == sorted(places)
