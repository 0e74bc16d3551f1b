"""Archives: a study frozen, thawed elsewhere and used there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.paths import StudyFolder
from policygrain.report import freeze as freezing
from policygrain.report.freeze import MANIFEST, freeze, thaw
from policygrain.results import StudyResults
from policygrain.study import Study

from ..support.made_up import make_up


def test_a_frozen_study_is_verified_and_redrawn_elsewhere(results: Path, tmp_path: Path) -> None:
    archive = tmp_path / "study.zip"
    assert main(["freeze", str(results), "--out", str(archive)]) == 0
    assert main(["thaw", str(archive), "--out", str(tmp_path / "again")]) == 0
    for name in ("rounds.png", "results.csv", "claims.md"):
        original = next(results.glob(f"*/{name}"))
        assert (tmp_path / "again" / "redrawn" / name).read_bytes() == original.read_bytes(), name
    with pytest.raises(UserError, match="is not empty"):
        thaw(archive, tmp_path / "again")
    with pytest.raises(UserError, match=r"no study\.yaml here"):
        freeze(tmp_path, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_an_empty_folder_that_exists_is_used(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    manifest = thaw(archive, tmp_path / "new")
    there = {p.relative_to(tmp_path / "new").as_posix() for p in (tmp_path / "new").rglob("*") if p.is_file()}
    assert there == set(manifest.files) and list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_an_unpacking_that_is_killed_leaves_nothing_in_its_place(archive: Path, tmp_path: Path) -> None:
    code = "import os, pathlib, sys; from policygrain.report.freeze import thaw; "
    code += "thaw(*map(pathlib.Path, sys.argv[1:]), finish=lambda folder: os.kill(os.getpid(), 9))"
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", code, str(archive), str(out)], check=False).returncode == -9
    assert not out.exists()
    thaw(archive, out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and StudyResults(out).summaries


def test_the_working_directory_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", str(tmp_path)):
        assert main(["thaw", str(archive), "--out", name]) == 2
        assert f"{name}: is the working directory; give the name of a new folder." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_says_what_is_in_the_archive(archive: Path, results: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        manifest = freezing.Manifest.model_validate_json(packed.read(MANIFEST))
        assert {*manifest.files, MANIFEST} == set(packed.namelist())
        assert all(manifest.files[n].size == len(packed.read(n)) for n in manifest.files)
    assert manifest.study == results.name
    assert any(line.startswith("pydantic==") for line in manifest.environment)


def test_products_of_earlier_settings_and_large_files_are_not_frozen(study: Study, tmp_path: Path) -> None:
    folder = StudyFolder(make_up(study, tmp_path / "smoke", {}))
    run = folder.run("tepo", 0)
    stale = [
        run.failed_batch,
        run.superseded("0123") / "metrics.jsonl",
        run.checkpoints / "step1" / "model.pt",
        run.model / "model.safetensors",
        run.lock,
        folder.run("an_arm_of_before", 0).metrics,
        folder.run("an_arm_of_before", 0).evaluation.record,
        folder.log("train", "tepo"),
        folder.path / "figures" / ".rounds.png.host.1.tmp",
    ]
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stale")
    manifest = freeze(folder.path, tmp_path / "study.zip")
    frozen = {folder.path / name for name in manifest.files}
    assert not frozen & set(stale)
    kept = {run.config, run.summary, run.metrics, run.timings, run.evaluation.record, folder.study}
    kept |= {folder.estimators(0), folder.rounds(1)}
    assert kept <= frozen
    # A run that the study asks for and that is of other settings is no result of this study.
    content = yaml.safe_load(folder.study.read_text())
    content["training"]["learning_rate"] = 0.5
    folder.study.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"other settings than the study's \(training\.learning_rate differ\)"):
        freeze(folder.path, tmp_path / "other.zip")


def test_a_study_of_own_problems_is_used_without_them(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thawed, shown, compared and redrawn where neither `data.root` nor the problem files exist."""
    content = study.model_dump(mode="json")
    content["data"] |= {"train": ["own.jsonl"], "root": "/a/folder/of/another/machine"}
    content["evaluation"]["benchmarks"] = [{"name": "own", "source": "own_test.jsonl"}]
    results = make_up(Study.model_validate(content, strict=False), tmp_path / "own", {"start": 0, "tepo": 9})
    freeze(results, tmp_path / "study.zip")
    shutil.rmtree(results)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["thaw", str(tmp_path / "study.zip"), "--out", "new"]) == 0
    assert (elsewhere / "new" / "redrawn" / "rounds.png").exists()
    capsys.readouterr()
    assert main(["show", "new", "--all"]) == 0
    assert "own: 12 problems" in capsys.readouterr().out
    assert main(["show", "new/runs/tepo/seed0", "--page", "page.html"]) == 0
    assert "own: what is 3?" in (elsewhere / "page.html").read_text()
    assert main(["figure", "results", "--config", "new/study.yaml", "--results", "new"]) == 0
    capsys.readouterr()
    assert main(["claims", "new"]) == 0 and "claims: " in capsys.readouterr().out


def test_nothing_of_an_archive_is_imported(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method names a function in a file of the archive, and the working directory and `sys.path` lead to it."""
    mark = tmp_path / "executed"
    content = study.model_dump(mode="json")
    content["methods"]["evil"] = {"base": "reinforce", "ratio": "new.data.evil:f"}
    content["experiments"]["headline"]["methods"] = ["grpo", "tepo", "evil"]
    folder = StudyFolder(make_up(Study.model_validate(content, strict=False), tmp_path / "smoke", {"start": 0}))
    code = folder.data.path / "evil.py"
    code.parent.mkdir()
    code.write_text(f"open({str(mark)!r}, 'w').close()\n\n\ndef f(batch):\n    return batch.log_probs\n")
    freeze(folder.path, tmp_path / "study.zip")
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    commands = [
        ["thaw", "../study.zip", "--out", "new", "--trust"],
        ["show", "new"],
        ["figure", "results", "--config", "new/study.yaml", "--results", "new"],
        ["figure", "benchmarks", "--config", "new/study.yaml", "--results", "new"],
        ["claims", "new", "new"],
    ]
    assert main(["thaw", "../study.zip", "--out", "new"]) == 2
    assert "new.data.evil:f" in capsys.readouterr().err and not (place / "new").exists() and not mark.exists()
    for command in commands:
        assert main(command) == 0, capsys.readouterr().err
        assert not mark.exists(), command
    assert (place / "new" / "data" / "evil.py").exists(), "it was there to be imported"


def test_a_small_archive_has_all_that_tables_need_and_no_responses(results: Path, tmp_path: Path) -> None:
    small = freeze(results, tmp_path / "small.zip", small=True)
    whole = freeze(results, tmp_path / "whole.zip")
    left_out = set(whole.files) - set(small.files)
    assert set(small.files) < set(whole.files) and any(name.endswith("evaluation/count.jsonl") for name in left_out)
    assert not any(name.startswith("figures/") or "/tokens/" in name for name in small.files)
    thaw(tmp_path / "small.zip", tmp_path / "new")
    one, two = StudyResults(results), StudyResults(tmp_path / "new")
    assert one.model_evaluations == two.model_evaluations and one.steps.equals(two.steps)


def test_a_study_without_evaluations_is_thawed_without_their_table(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = make_up(study.model_copy(update={"figures": []}), tmp_path / "smoke", {"start": 0})
    for record in [*results.glob("runs/*/*/evaluation"), *results.glob("start/*/evaluation")]:
        shutil.rmtree(record)
    freeze(results, tmp_path / "study.zip")
    assert main(["thaw", str(tmp_path / "study.zip"), "--out", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert "note: results is not redrawn" in said and "note: ablation is not redrawn" in said
    assert f"{tmp_path / 'new'}: nothing has been evaluated" in said
    drawn = {path.stem for path in (tmp_path / "new" / "redrawn").iterdir()}
    assert drawn == {"findings", "claims"}
