"""The overview of a study: what is wrong with all of it, a table of its arms, its comparisons, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policygrain.report.overview import rows, screen, warnings
from policygrain.results import StudyResults
from policygrain.study import Study, parse_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]
HEADLINE = {"headline": {"methods": ["grpo", "dapo"]}}
MANY = {"headline": {"methods": ["grpo", "dapo", "tepo", "mpo"], "vary": {"learning_rate": [1e-4, 2e-4, 4e-4]}}}


def study_with(**changes: Any) -> Study:
    return parse_study({"base": "config.yaml", "name": "made-up", **changes}, ROOT / "study.yaml")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def overview(right: dict[str, int], **changes: Any) -> tuple[list[str], StudyResults]:
    """The lines of the screen, where ``right`` are how many of 12 problems each arm solves; and the results."""
    results = StudyResults(make_up(study_with(**changes), Path("results/made-up"), {"start": 0, **right}))
    return screen(results).splitlines(), results


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, {"tepo": 9}),
        ({"experiments": HEADLINE}, {"dapo": 9}),
        ({"experiments": MANY}, {"dapo": 9}),
        ({"experiments": HEADLINE, "seeds": [0]}, {}),
        ({"experiments": {"mine": {"methods": ["grpo"]}}, "figures": []}, {}),
        ({"experiments": {"headline": {"methods": ["grpo"], "evaluate": False}}}, {}),
    ],
    ids=["the default study", "two methods", "many arms", "one seed", "no headline", "not evaluated"],
)
def test_it_fits_on_a_screen(changes: dict[str, Any], right: dict[str, int]) -> None:
    lines, results = overview(right, **changes)
    assert len(lines) <= 15 and max(map(len, lines)) <= 80
    assert str(results.folder.report) in " ".join(lines) and "make ui" in lines[-1]


def test_the_default_study_has_its_headline_and_its_comparison() -> None:
    lines, results = overview({"tepo": 9})
    text = "\n".join(lines)
    assert [row.arm for row in rows(results)][:5] == ["start", "grpo", "dapo", "tepo", "mpo"]
    for name in ("initial model", "GRPO", "DAPO", "TEPO", "MPO"):
        assert sum(line.startswith(f"{name}  ") for line in lines) == 1, name
    (of_tepo,) = (line for line in lines if line.startswith("TEPO  "))
    assert "75.0 ±" in of_tepo
    assert "block ratio, clip − block ratio (rollouts 16 steps old, learning rate 0.0004)" in " ".join(text.split())


def test_two_whole_methods_are_compared_with_what_they_differ_in() -> None:
    lines, _ = overview({"dapo": 9}, experiments=HEADLINE)
    text = " ".join(" ".join(lines).split())
    assert "DAPO − GRPO: +0.0 [" in text and "final accuracy +25.0 [" in text
    assert "whole methods, which differ in clip, aggregation, sampler" in text


@pytest.mark.parametrize(
    ("right", "begins"),
    [
        ({"grpo": 0, "dapo": 0}, "No response of any model was ever correct."),
        ({"start": 6, "grpo": 6, "dapo": 6}, "Nothing has learned: "),
        ({"start": 6, "grpo": 3, "dapo": 6}, "Nothing has learned: "),
    ],
)
def test_a_study_in_which_nothing_was_right_or_learned_says_so_first(right: dict[str, int], begins: str) -> None:
    lines, results = overview(right, experiments=HEADLINE, evaluation={"greedy": False})
    assert lines[0].startswith(begins)
    assert [text.startswith(begins) for text in warnings(results, rows(results))] == [True]


def test_a_study_that_has_learned_has_no_warning() -> None:
    _, results = overview({"dapo": 9}, experiments=HEADLINE)
    assert warnings(results, rows(results)) == []
