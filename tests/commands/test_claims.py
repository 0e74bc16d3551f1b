"""`policygrain claims`: a study by its folder or by its file, in full or brief."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.study import load_study

from ..conftest import ROOT
from ..support.made_up import make_up


def test_a_study_file_stands_for_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `make all` calls it."""
    file = str(ROOT / "tests/support/every_stage.yaml")
    make_up(load_study(file), tmp_path / "results" / "smoke", {"tepo": 9})
    monkeypatch.chdir(tmp_path)
    assert main(["claims", file, "--brief"]) == 0
    brief = capsys.readouterr().out
    assert main(["claims", "results/smoke", "--brief"]) == 0
    assert capsys.readouterr().out == brief
    assert "TEPO " in brief and "Report: results/smoke/report.html" in brief
    assert main(["claims", file]) == 0
    assert "sanity check worse: passed" in capsys.readouterr().out


def test_a_study_that_has_not_been_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["claims", str(ROOT / "tests/support/every_stage.yaml"), "--brief"]) == 2
    assert "results/smoke" in capsys.readouterr().err
