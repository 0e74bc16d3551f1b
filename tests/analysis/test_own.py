"""Methods of a study's own are compared with what they change, in the summary and in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.own import own_comparisons
from policygrain.cli import main
from policygrain.figures import TABLES
from policygrain.figures.catalogue import draw
from policygrain.report import write_report
from policygrain.results.reader import StudyResults
from policygrain.study import load_study, parse_study

from ..conftest import ROOT
from ..support.made_up import make_up
from ..support.small import SMALL, write_study

MINE: dict[str, Any] = SMALL | {
    "name": "mine",
    "seeds": [0, 1, 2, 3],
    "methods": {"pairs": {"base": "dapo", "clip": {"low": 0.1}}, "more": {"base": "pairs", "clip": {"low": 0.2}}},
    "experiments": {"headline": {"methods": ["grpo", "dapo", "pairs", "more"]}},
    "figures": ["dynamics", "benchmarks"],
}


def compared(**changes: Any) -> list[tuple[str, str, str]]:
    study = parse_study(MINE | changes, Path("study.yaml"))
    return [(c.of, c.than, c.statistic) for c in own_comparisons(study)]


def test_a_method_is_compared_with_the_nearest_base_that_is_trained() -> None:
    assert compared() == [("pairs", "dapo", "accuracy"), ("more", "pairs", "accuracy")]
    assert compared(experiments={"e": {"methods": ["dapo", "more"]}}) == [("more", "dapo", "accuracy")]
    assert compared(experiments={"e": {"methods": ["grpo", "more"]}}) == []
    updates = {"methods": ["dapo", "pairs"], "vary": {"updates_per_batch": [1, 2]}, "evaluate": False}
    assert compared(experiments={"e": updates}) == [
        ("pairs+updates_per_batch=1", "dapo+updates_per_batch=1", "curve"),
        ("pairs", "dapo", "curve"),
    ]
    only_base = {"methods": ["dapo"], "vary": {"updates_per_batch": [1]}}
    assert compared(experiments={"e": {"methods": ["pairs"]}, "f": only_base}) == [], "with other settings"


@pytest.mark.parametrize("path", ["config.yaml", *(f"studies/{name}.yaml" for name in ("smoke", "hour", "bands"))])
def test_methods_that_claims_name_are_not_the_study_s_own(path: str) -> None:
    assert own_comparisons(load_study(ROOT / path)) == []


def test_the_summary_ends_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "mine.yaml", MINE)
    make_up(load_study(study), tmp_path / "results" / "mine", {"pairs": 9, "more": 9})
    monkeypatch.chdir(tmp_path)
    assert main(["claims", "mine.yaml", "--brief"]) == 0
    brief = capsys.readouterr().out
    assert "no records" not in brief.lower()
    first, second = brief.splitlines()[-2:]
    # 9 instead of 6 of 12 problems
    assert first.startswith("pairs − dapo: +25.0 [") and first.endswith("] points of accuracy, over 4 training seeds.")
    assert second.startswith("more − pairs: +0.0 [")


def test_the_report_begins_with_them_and_benchmarks(tmp_path: Path) -> None:
    results = StudyResults(make_up(parse_study(MINE, Path("study.yaml")), tmp_path / "mine", {"pairs": 9}))
    for name in (*results.study.figures, *TABLES):
        draw(name, results)
    write_report(results, ROOT / "workflow" / "report", out := tmp_path / "report.html")
    page = out.read_text()
    assert (
        page.index("pairs − DAPO: +25.0\N{NO-BREAK SPACE}[")
        < page.index('id="benchmarks"')
        < page.index('id="dynamics"')
    )
