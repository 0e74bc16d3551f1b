"""The overview of a study: what is wrong with all of it, a table of its arms, its comparisons, on one screen."""

from pathlib import Path
from typing import Any

import pytest

from policygrain.report.overview import rows, screen, warnings
from policygrain.results import StudyResults
from policygrain.study import parse_study

from ..support.made_up import make_up
from . import CASES

HEADLINE = {"headline": {"methods": ["grpo", "dapo"]}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("results/made-up")


def made_up(folder: Path, root: Path, right: dict[str, int], **changes: Any) -> StudyResults:
    """The default study with changes, where ``right`` are how many of 12 problems each arm solves."""
    study = parse_study({"base": "config.yaml", "name": "made-up", **changes}, root / "study.yaml")
    return StudyResults(make_up(study, folder, {"start": 0, **right}))


@pytest.mark.parametrize(("right", "changes", "said"), CASES["screens"].values(), ids=CASES["screens"])
def test_it_fits_on_a_screen(right, changes, said, folder, root):
    results = made_up(folder, root, right, **changes)
    lines = screen(results).splitlines()
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= 15 and max(map(len, lines)) <= 80
    assert str(results.folder.report) in text and "make ui" in lines[-1]
    assert all(words in text for words in said), text
    if not changes:
        assert [row.arm for row in rows(results)][:5] == ["start", "grpo", "dapo", "tepo", "mpo"]


@pytest.mark.parametrize(("right", "begins"), CASES["warnings"])
def test_a_study_in_which_nothing_was_right_or_learned_says_so_first(right, begins, folder, root):
    results = made_up(folder, root, right, experiments=HEADLINE, evaluation={"greedy": False})
    assert [screen(results).startswith(text) for text in begins] == [True] * len(begins)
    found = warnings(results, rows(results))
    assert [text[: len(begin)] for text, begin in zip(found, begins, strict=True)] == begins
