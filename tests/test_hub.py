"""Which model a name on the hub or a folder means, with a cache as the hub's client writes it."""

import shutil
from pathlib import Path

import pytest

from policygrain import digests
from policygrain.commands.workflow import write_settings
from policygrain.errors import UserError
from policygrain.evaluate.evaluation import evaluate_study
from policygrain.hub import identity, pinned
from policygrain.paths import DataFolder, StudyFolder
from policygrain.records import write_record
from policygrain.results import StudyResults, run_config
from policygrain.study.runs import run_matrix
from policygrain.study.schema import Model
from policygrain.trainers.run import run_config as config_of_run

from .support.files import flip_bit
from .support.small import small_study

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, made, monkeypatch):
    """The cache of a machine without network that has two commits of some/model, of which OLD is `main`."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "models--some--model"
    for commit in (OLD, NEW):
        shutil.copytree(made[1], folder / "snapshots" / commit, ignore=shutil.ignore_patterns("start.json"))
    flip_bit(folder / "snapshots" / NEW / "model.safetensors")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(OLD)
    return folder


def test_a_name_is_the_commit_that_is_in_the_cache(cache):
    assert identity("some/model") == identity("some/model", "main") == OLD
    assert identity("some/model", NEW) == NEW
    assert pinned(Model(start="some/model")).revision == OLD
    assert pinned(Model(start="tiny")).revision is None
    (cache / "refs" / "main").write_text(NEW)
    assert identity("some/model") == NEW
    with pytest.raises(UserError, match=r"'other/model' is neither a folder with .*`hf download other/model`"):
        identity("other/model")


def written(name: str, results: StudyFolder) -> dict[str, str]:
    write_settings(small_study(model={"start": name}), results)
    return {path.name: path.read_text() for path in results.settings("x").parent.rglob("*.json")}


def test_another_commit_or_other_weights_start_again_what_is_made_from_them(cache, tmp_path):
    results, start = StudyFolder(tmp_path / "results"), tmp_path / "start"
    shutil.copytree(cache / "snapshots" / OLD, start)
    for name, folder, change in (
        ("some/model", cache, lambda: (cache / "refs" / "main").write_text(NEW)),
        (str(start), start, lambda: flip_bit(start / "model.safetensors")),
    ):
        before = written(name, results)
        change()
        after = written(name, results)
        assert {key for key in before if before[key] != after[key]} == {"grpo.json", "evaluation.json"}
        shutil.rmtree(folder)
        assert written(name, results) == after, "what was recorded stands where the model is not here"


def test_runs_record_their_commit_and_are_not_compared_with_those_of_another(cache, made, tmp_path):
    study, folder = small_study(model={"start": "some/model"}, seeds=[0, 1]), StudyFolder(tmp_path / "results")
    (arm,) = run_matrix(study).arms.values()
    for seed in (0, 1):
        config = config_of_run(study, arm, seed, "some/model", DataFolder(made[0]))
        write_record(folder.run(arm.name, seed).config, config)
        folder.run(arm.name, seed).metrics.touch()
        (cache / "refs" / "main").write_text(NEW)
    assert run_config(folder.run(arm.name, 0)).inputs.start_model == OLD
    with pytest.raises(UserError, match=f"some/model' has changed: .*seed0 began from {OLD}, .*seed1 from {NEW}"):
        _ = StudyResults(folder.path, study).trained


def test_the_evaluated_start_model_is_that_of_the_revision(cache, made, tmp_path):
    """Though the cache has another commit as `main`."""
    study = small_study(model={"start": "some/model", "revision": NEW})
    results = StudyFolder(tmp_path / "results")
    evaluate_study(study, {"start/seed0": Path("some/model")}, DataFolder(made[0]), results)
    protocol = StudyResults(results.path, study).model_evaluations["start/seed0"].protocol
    assert digests.of_model(cache / "snapshots" / NEW) in str(protocol)
