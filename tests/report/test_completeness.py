"""Whether a study is finished: what is gone or cut off is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.report.completeness import check_complete
from policygrain.results import StudyResults

from ..support.made_up import make_up_tracking


@pytest.fixture
def finished(results: Path, tmp_path: Path) -> Path:
    """The drawn study with a report."""
    folder = Path(shutil.copytree(results, tmp_path / "smoke"))
    (folder / "report.html").touch()
    make_up_tracking(folder, "sqlite:///mlflow.db")
    check_complete(StudyResults(folder))
    return folder


@pytest.mark.parametrize(
    "pattern",
    [
        "runs/*/*/summary.json",
        "runs/*/*/evaluation/*",
        "start/*/evaluation/*",
        "figures/*",
        "tables/*",
        "report.html",
        "mlflow.json",
    ],
)
def test_any_result_that_is_gone_is_noticed(pattern: str, finished: Path) -> None:
    for path in finished.glob(pattern):
        content = path.read_bytes()
        path.unlink()
        name = re.escape(str(path.relative_to(finished)))
        with pytest.raises(UserError, match=rf"not finished: 1 of its results are missing, such as {name}"):
            check_complete(StudyResults(finished))
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("metrics.jsonl", lambda text: text.splitlines()[0] + "\n", r"1 steps of \d+.* remove its folder"),
        ("metrics.jsonl", None, "cannot be read.* remove its folder"),
        ("summary.json", lambda text: text[:50], "not JSON"),
        ("evaluation/records.json", lambda text: text[:50], "not JSON"),
    ],
)
def test_a_record_that_is_damaged_is_named(
    name: str, damage: Callable[[str], str] | None, says: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "runs" / "tepo" / "seed1" / name
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage(path.read_text()))
    command = ["report", "--config", str(finished / "study.yaml"), "--results", str(finished), "--screen"]
    assert main(command) == 2
    assert re.search(rf"tepo/seed1/{name}: .*{says}", capsys.readouterr().err)
