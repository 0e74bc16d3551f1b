"""Published records are those of the study files beside which they are described."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from policygrain.cli import main
from policygrain.figures import TABLES, catalogue
from policygrain.figures.catalogue import draw
from policygrain.objective import method
from policygrain.objective.method import TEXTS
from policygrain.results import StudyResults
from policygrain.study import Study, load_recorded_study, load_study
from policygrain.study.runs import run_matrix

NAMES = """
phase phase-old phase-old-rates phase-ranges night night-replicate mismatch newer turns turns-ranges turns-replicate
turn-rewards recipes convergence engines scale scale-direct scale-scratchpad scale-fresh scale-long
scale-long-fresh scale-0.3m scale-1m scale-5m mask engines-verl controls smollm2-code smollm2-ratios
smollm2-sums
"""
# Record → its study file.
RECORDS = {"laptop": "studies/laptop-full.yaml", "smollm2": "studies/smollm2.yaml"}
RECORDS |= {name: f"lab/research/studies/{name}.yaml" for name in NAMES.split()}
# Of study files that have changed since or are no longer there, for docs/withdrawn.md, regime.md and engines.md.
RETIRED = tuple(
    f"earlier/{name}" for name in ("laptop", "laptop-replicate", "laptop-loop", "laptop-trl", "hour", "bands", "newer")
)
pytestmark = pytest.mark.release  # archives of 120 MB are read
ROOT = Path(__file__).parents[2]
# What changes no result, and may have changed since.
FREE = {"name", "base", "tuned_on", "title", "figures", "tracking", "seeds_per_process"}


@pytest.mark.parametrize("name", RECORDS)
def test_a_published_record_is_of_its_study_file(name: str, tmp_path: Path) -> None:
    with ZipFile(ROOT / "docs" / "records" / f"{name}.zip") as archive:
        (member,) = [n for n in archive.namelist() if n.endswith("study.yaml")]
        (tmp_path / "study.yaml").write_bytes(archive.read(member))
    record, file = load_recorded_study(tmp_path / "study.yaml"), load_study(ROOT / RECORDS[name])
    for key in set(type(file).model_fields) - FREE - {"methods"}:
        assert getattr(record, key) == getattr(file, key), key
    assert methods_of(record) == methods_of(file)


def methods_of(study: Study) -> dict[str, dict[str, object]]:
    """What the methods of a study are, without their texts."""
    names = {arm.method_name for arm in run_matrix(study).arms.values()}
    for section in (study.estimators, study.rounds):
        names |= {*section.methods, section.reference} if section else set()
    return {
        name: {key: value for key, value in method(name, study.methods).data().items() if key not in TEXTS}
        for name in names
    }


@pytest.mark.parametrize("name", [*RECORDS, *RETIRED])
def test_a_published_record_is_thawed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its tables; figures, which take long, have tests of their own."""
    monkeypatch.setattr(catalogue, "draw", lambda what, *rest: draw(what, *rest) if what in TABLES else None)
    archive = ROOT / "docs" / "records" / f"{name}.zip"
    assert main(["thaw", str(archive), "--out", str(tmp_path / "new")]) == 0, capsys.readouterr().err
    without = {"results"} if name == "earlier/bands" else set()  # of which no model was evaluated
    assert {path.stem for path in (tmp_path / "new" / "redrawn").iterdir()} == {*TABLES} - without
    runs = len(list((tmp_path / "new").glob("runs/*/*/metrics.jsonl")))
    assert len(StudyResults(tmp_path / "new").trained) == runs, "those that an earlier version added are read, too"


def test_every_published_record_is_tested() -> None:
    there = ROOT / "docs" / "records"
    assert {str(path.relative_to(there).with_suffix("")) for path in there.glob("**/*.zip")} == {*RECORDS, *RETIRED}
