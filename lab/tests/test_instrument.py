"""What both measurements of initial models share: their commands, what is recorded, and mistakes."""

import re
import shutil

import pytest

from policygrain.paths import StudyFolder
from policygrain.records import read_record
from policygrain.study import study_text
from policygrain_lab.cli import main
from policygrain_lab.measured.records import EstimatorsRecord, RoundsRecord
from tests.support.small import small_study

HEADS = {"heads": {"base": "mpo", "ratio": {"future": "mtp_heads"}}}


@pytest.fixture
def results(made, tmp_path):
    """Results of a study, two initial models of which are there."""
    folder, study = StudyFolder(tmp_path / "small"), small_study(methods=HEADS, seeds=[0, 1, 2], training={"group": 8})
    shutil.copytree(made[0], folder.data.path)
    for seed in (0, 1):
        shutil.copytree(made[1], folder.start(seed).path)
    folder.study.write_text(study_text(study, folder.study))
    return folder


FEW = {"estimators": "--steps 0 --updates 1 --batches 6 --true-prompts 150", "rounds": "--steps 0 1 --updates 1 2"}


@pytest.mark.parametrize(("name", "kind"), [("estimators", EstimatorsRecord), ("rounds", RoundsRecord)])
def test_the_command_reads_a_study_and_writes_records(name, kind, results, tmp_path, capsys):
    """Those of seeds that share everything but the seed differ; the first is the same by itself."""
    options = ["--methods", "dapo", "reinforce", "--reference", "dapo", "--prompts-per-update", "2", *FEW[name].split()]
    assert main([name, str(results.path), *options, "--seeds", "0", "1"]) == 0
    assert "reference" in capsys.readouterr().out
    one, other = (read_record(kind, results.path / "lab" / f"{name}-seed{seed}.json", "") for seed in (0, 1))
    assert one.rows != other.rows and len(one.rows) == len(other.rows)
    assert main([name, str(results.path), *options, "--out", str(tmp_path / "again")]) == 0
    assert read_record(kind, tmp_path / "again" / f"{name}-seed0.json", "").rows == one.rows


@pytest.mark.parametrize("name", ["estimators", "rounds"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--methods dapo tepo dapo", "--methods: dapo occurs twice"),
        ("--methods dapo teppo", r"--methods: no method is called 'teppo'\. Did you mean 'tepo'"),
        ("--methods tepo", "--reference: 'dapo' is not one of --methods"),
        ("--methods dapo heads", "--methods: 'heads' needs prediction heads"),
        ("--methods dapo a3po", "--methods: 'a3po' needs the age of rollouts"),
        ("--methods dapo --updates 4 4", "--updates: 4 occurs twice"),
        ("--methods dapo --steps -1", "--steps -1: expected at least 0"),
        ("--methods dapo --steps 9", r"--steps: 9 is more than training\.steps \(4\)"),
        ("--methods dapo --updates 99", "--updates: needs 297 prompts, but there are 200 training problems"),
        ("--methods dapo --seeds 2", r"start/seed2/start\.json: is missing; run the study"),
    ],
)
def test_mistakes_are_named(name, options, says, results, capsys):
    assert main([name, str(results.path), "--reference", "dapo", *options.split()]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not (results.path / "lab").exists()


def test_too_few_prompts_and_a_folder_without_a_study(results, tmp_path, capsys):
    command = ["--methods", "dapo", "--reference", "dapo", "--true-prompts", "2"]
    for path, says in ((results.path, "--true-prompts 2: expected at least 3"), (tmp_path, "no study.yaml here")):
        assert main(["estimators", str(path), *command]) == 2
        assert says in capsys.readouterr().err
