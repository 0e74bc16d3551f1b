"""What a trainer lacks is refused before anything is spent; a study that asks for nothing special is not."""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from policygrain.errors import UserError
from policygrain.study import Study
from policygrain.study.runs import Arm, run_matrix
from policygrain.trainers import check, verl
from policygrain.trainers.check import TRAINERS, check_trainers, lacking
from policygrain.trainers.launch import launcher, own_gpu

from ..support.small import small_study, train_small

DATA = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())


def study_of(trainer: str, method: dict[str, Any], training: dict[str, Any], **sections: Any) -> Study:
    return small_study(
        methods={"mine": {"base": "grpo", **method}},
        experiments={"headline": {"methods": ["mine"]}},
        training={"trainer": trainer, **training},
        **sections,
    )


def arm_of(study: Study) -> Arm:
    (arm,) = run_matrix(study).arms.values()
    return arm


@pytest.fixture
def installed(monkeypatch):
    """verl, of the release that was tested."""
    monkeypatch.setattr(verl, "verl_version", lambda _: "0.9.1")
    monkeypatch.setenv(verl.PYTHON, sys.executable)


@pytest.mark.parametrize("feature", DATA["features"])
def test_a_trainer_refuses_what_it_lacks(feature):
    have, method, sections = DATA["features"][feature]
    for trainer in TRAINERS.keys() - {"command"}:  # which has no features
        study = study_of(trainer, method, **{"training": {}, **sections})
        found = [text for text in lacking(trainer, study, arm_of(study)) if text.startswith(feature)]
        assert bool(found) == (trainer not in have), trainer


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("trainer", "method", "training", "message"), DATA["refused"])
def test_what_cannot_work_is_refused_before_anything_is_spent(trainer, method, training, message, made, tmp_path):
    refused = study_of(trainer, method, training)
    with pytest.raises(UserError, match=message):
        check_trainers(refused)
    with pytest.raises(UserError, match=message):
        train_small(refused, tmp_path / "run", *made)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("installed")
def test_other_keys_are_passed_on():
    check_trainers(study_of("trl", {}, {"trl": {"fsdp": True, "ddp_timeout": 60, "dataloader_num_workers": 0}}))
    check_trainers(study_of("verl", {}, {"verl": {"trainer": {"n_gpus_per_node": 4}}}))


def test_the_loop_is_one_process(made, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"training\.trainer: policygrain is started as one process.* Set it to trl"):
        train_small(small_study(), tmp_path / "run", *made)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("trainer", "version", "message"), DATA["not installed"])
def test_a_trainer_that_is_missing_or_of_another_release_is_named(trainer, version, message, monkeypatch):
    monkeypatch.setenv(verl.PYTHON, "nowhere")
    monkeypatch.setattr(check, "version", Mock(side_effect=[version or check.PackageNotFoundError()]))
    with pytest.raises(UserError, match=rf"training\.trainer: .*{message}"):
        check_trainers(study_of(trainer, {}, {}))


def test_processes_of_an_mpi_job_are_started_by_its_launcher_and_see_a_gpu_each():
    assert launcher({"nodes": 2}) == ""
    assert "--nodes=2 --ntasks=2 " in launcher({"mpi": "srun", "nodes": 2}), "without a number one per node"
    assert "--nodes=2 --ntasks=8 " in launcher({"mpi": "srun", "nodes": 2, "tasks_per_node": 4})
    seen = [own_gpu(*where) for where in ((1, "0,1"), (1, "GPU-a"), (3, "4,6"), (1, "1"), (1, ""))]
    assert seen == ["1", "GPU-a", "6", "1", ""]
