"""`policygrain interim`: its record, its finished job, and what follows from records that are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policygrain import digests
from policygrain.cli import main
from policygrain.results.layout import StudyFolder
from policygrain.results.measured import interim_record
from policygrain.results.schema import write_record

from ..analysis.records import effects, study_of, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of eight seeds in which MPO is clearly worse than the others, and every claim with records is decided."""
    study = study_of(8, sequential={"add": 2, "budget": "200 minutes"})
    return write(study, tmp_path_factory.mktemp("study"), effects(tepo=-9.0, mpo=-9.0)).folder.path


def test_it_writes_its_record_and_its_finished_job(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, job = StudyFolder(folder), tmp_path / f"0-{'a' * 16}.json"
    assert main(["interim", str(folder), "--number", "0", "--done", str(job)]) == 0
    record = interim_record(study, 0)
    assert capsys.readouterr().out == f"{record.reason}\n"
    assert (
        record.number == 0
        and record.add == {}
        and record.undecided["mpo_beats_token_level"].startswith("undecided, comparison withdrawn: ")
    )
    assert json.loads(job.read_text())["results"] == {"interim/0": digests.of_file(study.interim(0))}


def test_records_of_later_analyses_are_removed(folder: Path) -> None:
    """They were made from the one that is made again."""
    study = StudyFolder(folder)
    assert main(["interim", str(folder), "--number", "0"]) == 0
    for number in (1, 2):
        write_record(study.interim(number), interim_record(study, 0).model_copy(update={"number": number}))
    assert main(["interim", str(folder), "--number", "1"]) == 0
    assert study.interim(0).exists() and study.interim(1).exists() and not study.interim(2).exists()


@pytest.mark.parametrize("number", ["-1", "7"])
def test_an_analysis_without_those_before_it_is_refused(
    number: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["interim", str(folder), "--number", number]) == 2
    assert f"--number: {number}; the interim analyses before it have not been made" in capsys.readouterr().err
