"""`assert_verl`: whole runs of verl on a CPU, by `make test-peers` (some minutes)."""

from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.integrations.options import EXPORTED
from policygrain.paths import DataFolder
from policygrain.study.runs import run_matrix
from policygrain.trainers.verl import export, verl_python
from policygrain_lab.conformance.verl import assert_verl
from tests.support.small import small_study
from tests.support.verl_on_cpu import ENVIRONMENT, SETTINGS

pytestmark = [pytest.mark.verl, pytest.mark.needs("verl")]
ACTOR = "actor_rollout_ref.actor"


@pytest.fixture(scope="module")
def python():
    return str(verl_python())


@pytest.fixture
def arguments(made, tmp_path, monkeypatch):
    """The command line of a run with verl's own loss, in micro-batches."""
    data, start = made
    training: dict[str, Any] = {"trainer": "verl", "verl": SETTINGS, "prompts_per_step": 16, "micro_batch_tokens": 400}
    study = small_study(training=training)
    export(study, next(iter(run_matrix(study).arms.values())), 0, str(start), DataFolder(data), tmp_path / "run")
    path = f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[1] / 'src'}"
    own = {"PYTHONPATH": path, "HYDRA_FULL_ERROR": "1", EXPORTED: str(tmp_path / "run")}
    for name, value in (ENVIRONMENT | own).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    of_loss = ["policy_loss.loss_mode=vanilla", "clip_ratio_low=0.2", "clip_ratio_high=0.28"]
    return ["--config-path", str(tmp_path / "run"), "--config-name", "verl", *(f"{ACTOR}.{text}" for text in of_loss)]


def test_a_run_on_two_ranks_that_has_the_objective(arguments, python):
    ranks = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"]
    assert_verl([*arguments, *ranks], "dapo", learning_rate=0.1, python=python)


@pytest.mark.parametrize("change", ["loss_agg_mode=seq-mean-token-mean", "clip_ratio_low=0.02"])
def test_a_run_that_has_another_one_is_found(change, arguments, python):
    with pytest.raises(AssertionError, match="not that of dapo: its gradient has cosine"):
        assert_verl([*arguments, f"{ACTOR}.{change}"], "dapo", learning_rate=0.1, python=python)


def test_a_run_that_fails_says_why(arguments, python):
    with pytest.raises(UserError, match=r"exit code 1 after 0 steps; the last lines:(.|\n)*no_such_key"):
        assert_verl([*arguments, "trainer.no_such_key=1"], "dapo", learning_rate=0.1, python=python)
