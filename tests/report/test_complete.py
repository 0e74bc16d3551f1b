"""A study counts as finished only if every result that it defines is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.report.completeness import check_complete, missing_results
from policygrain.results.reader import StudyResults


@pytest.fixture(scope="module")
def finished(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn study; of what was made up without content, an empty file."""
    folder = tmp_path_factory.mktemp("finished") / "smoke"
    shutil.copytree(results, folder)
    for path in missing_results(StudyResults(folder)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "runs/tepo/seed1/summary.json",
        "runs/tepo/seed1/evaluation/records.json",
        "start/seed0/evaluation/records.json",
        "estimators/seed1.json",
        "rounds/seed0.json",
        "figures/rounds.svg",
        "tables/claims.csv",
        "report.html",
        "mlflow.json",
    ],
)
def test_any_result_that_is_gone_is_noticed(name: str, finished: Path, tmp_path: Path) -> None:
    check_complete(StudyResults(finished))
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"not finished: 1 of its results are missing, such as {re.escape(name)}"):
        check_complete(StudyResults(folder))


def test_claims_of_a_study_that_must_be_complete(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    assert main(["claims", str(folder), "--brief", "--complete"]) == 0
    assert capsys.readouterr().out.endswith(f"\nThe report is in {folder}/report.html.\n")
    (folder / "report.html").unlink()
    assert main(["claims", str(folder), "--brief", "--complete"]) == 2
    assert "such as report.html" in capsys.readouterr().err


def test_a_record_that_is_cut_off_is_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    summary = folder / "runs" / "tepo" / "seed1" / "summary.json"
    summary.write_text(summary.read_text()[:50])
    with pytest.raises(UserError, match=r"tepo/seed1/summary\.json"):
        check_complete(StudyResults(folder))
