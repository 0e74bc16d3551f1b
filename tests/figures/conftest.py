"""A drawn study for the tests of this folder."""

import shutil
from pathlib import Path

import pytest

from policygrain.figures import TABLES
from policygrain.figures.catalogue import draw
from policygrain.results import StudyResults
from policygrain.study import load_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def study():
    study = load_study(ROOT / "tests/support/every_stage.yaml")
    return study.model_copy(update={"figures": ["benchmarks", "dynamics"]})


@pytest.fixture(scope="session")
def results(study, tmp_path_factory):
    """The smoke study, as if it had been run and drawn; TEPO right on three quarters, GRPO on half."""
    folder = make_up(study, tmp_path_factory.mktemp("study"), {"start": 0, "tepo": 9})
    for name in (*study.figures, *TABLES):
        draw(name, StudyResults(folder))
    return folder


@pytest.fixture
def copied(results, tmp_path):
    """A copy of it, to be changed."""
    return Path(shutil.copytree(results, tmp_path / "smoke"))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """MLflow takes seconds to make the tables of a store."""
    import mlflow

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path
