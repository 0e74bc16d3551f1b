"""The whole workflow with real jobs: the smoke study, twice; real problem sets; what runs again and what does not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis.controls import EXPECTED, controls
from policygrain.files import read_json, read_json_lines
from policygrain.merging import merge
from policygrain.results.reader import StudyResults
from policygrain.study import load_study

from ..support.small import write_study
from ..support.snakemake import jobs, kill_when, planned, snakemake

pytestmark = pytest.mark.slow


SMOKE = "study.yaml"  # in the folder of a finished study
# Fewer processes, and none of them starts vLLM: the study of real sets does.
FEWER = {"seeds_per_process": 2, "evaluation": {"engine": "transformers"}}


def smoke_study(folder: Path, root: Path, changes: dict[str, Any]) -> Path:
    """The smoke study with changes, key by key."""
    content = {"base": str(root / "studies" / "smoke.yaml"), "name": "smoke", **FEWER}
    return write_study(folder / SMOKE, merge(content, changes))


@pytest.fixture(scope="module")
def smoke(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished smoke study, MLflow included."""
    folder = tmp_path_factory.mktemp("smoke")
    done = snakemake(root, folder, smoke_study(folder, root, {}), "all")
    assert re.search(r" jobs done, \d+ running, \d+ waiting; .* so far", done.stderr)
    assert "rule train:" not in done.stderr and "The report is in results/smoke/report.html." in done.stderr
    return folder


def test_everything_is_there(smoke: Path) -> None:
    results = smoke / "results" / "smoke"
    for figure in load_study(smoke / SMOKE).figures:
        assert (results / "figures" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
        assert (results / "figures" / f"{figure}.png").stat().st_size > 10_000
    assert "| TEPO |" in (results / "tables" / "results.md").read_text()
    assert "running_total" in (results / "tables" / "results.csv").read_text()
    assert (results / "runs" / "tepo" / "seed1" / "evaluation" / "count.jsonl").exists()
    records = StudyResults(results)
    assert len(records.estimator_records) == len(records.round_records) == 2, "one of each initial model"
    found = {control.role: control for control in controls(records)}
    assert set(found) == set(EXPECTED) and all(control.difference.n == 2 for control in found.values())
    assert found["zero_learning_rate"].outcome == "passed" and found["other_seeds"].difference.mean != 0
    assert "| TEPO has the best average accuracy" in (results / "tables" / "claims.md").read_text()


def test_a_second_time_there_is_nothing_to_do(smoke: Path, root: Path) -> None:
    assert planned(root, smoke, smoke / SMOKE, "all") == {}


def test_a_copy_without_metadata_and_with_other_times_is_finished_too(smoke: Path, root: Path, tmp_path: Path) -> None:
    """As `cp -r` or a checkout leaves it: what is older than what it was made from is up to date all the same."""
    shutil.copytree(smoke / "results", tmp_path / "results", copy_function=shutil.copy)
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    for path in files:
        day = 86_400 * (1 + sum(path.name.encode()) % 100)
        os.utime(path, (day, day))
    assert planned(root, tmp_path, smoke / SMOKE, "all") == {}
    figures = tmp_path / "results" / "smoke" / "figures"
    before = (figures / "dynamics.png").read_bytes()
    for path in figures.glob("dynamics.*"):
        path.unlink()
    assert jobs(snakemake(root, tmp_path, smoke / SMOKE, "figures")) == {"figure": 1}
    assert (figures / "dynamics.png").read_bytes() == before


def test_mlflow_mirrors_the_records(smoke: Path) -> None:
    import mlflow

    store = mlflow.MlflowClient(f"sqlite:///{smoke}/results/mlflow.db")
    experiment = store.get_experiment_by_name("smoke")
    assert experiment is not None
    runs = {r.info.run_name: r for r in store.search_runs([experiment.experiment_id])}
    assert {"grpo seed 0", "tepo seed 1", "figures and tables"} <= set(runs)
    child = runs["tepo seed 1"]
    assert child.data.tags["arm"] == "tepo"
    assert child.data.params["method.ratio.name"] == "sequence" and child.data.params["training.steps"] == "3"
    rows = read_json_lines(smoke / "results/smoke/runs/tepo/seed1/metrics.jsonl")
    history = store.get_metric_history(child.info.run_id, "validation_accuracy")
    truth = [(r["step"], r["validation_accuracy"]) for r in rows if "validation_accuracy" in r]
    assert [(m.step, m.value) for m in history] == truth
    table = read_json(Path(store.download_artifacts(child.info.run_id, "samples.json")))
    assert table["columns"] == ["benchmark", "id", "problem", "response", "gold", "outcome"]
    assert len(table["data"]) == 10  # five of each benchmark
    assert '"table"' in child.data.tags["mlflow.loggedArtifacts"]
    artifacts = store.list_artifacts(runs["figures and tables"].info.run_id, "figures")
    assert "figures/dynamics.png" in [f.path for f in artifacts]


def test_two_calls_train_runs_with_identical_metrics(smoke: Path, root: Path, tmp_path: Path) -> None:
    """Two methods in the second call, which is killed in its middle and repeated: it resumes."""
    done = smoke / "results" / "smoke" / "done" / "train"
    targets = [str(path.relative_to(smoke)) for arm in ("grpo", "tepo") for path in (done / arm).iterdir()]
    study = smoke / SMOKE
    kill_when(lambda: any(tmp_path.glob("results/smoke/runs/*/seed*/checkpoints/*")), root, study, tmp_path, *targets)
    assert not any(Path(tmp_path / target).exists() for target in targets)
    begun = {path: path.read_bytes() for path in tmp_path.glob("results/smoke/runs/*/seed*/metrics.jsonl")}
    assert begun
    snakemake(root, tmp_path, study, *targets)
    runs = sorted(tmp_path.glob("results/smoke/runs/*/seed*/metrics.jsonl"))
    assert len(runs) == 4
    for path in runs:
        assert path.read_bytes() == (smoke / path.relative_to(tmp_path)).read_bytes(), path
        assert path.read_bytes().startswith(begun.get(path, b""))
    assert not list(tmp_path.glob("results/smoke/runs/*/seed*/superseded-*"))


def test_real_problem_sets_pass_through_every_stage(root: Path, tmp_path: Path, benchmarks_folder: Path) -> None:
    """To the table of results; figures, report and MLflow read the same records as of the smoke study."""
    results = Path("results") / "real-text"
    table = results / "tables" / "results.md"
    snakemake(root, tmp_path, "studies/real-text.yaml", str(table), POLICYGRAIN_DATA=str(benchmarks_folder))
    assert "| MPO, dynamic sampling (no updates) |" in (tmp_path / table).read_text()
    for benchmark in ("math500", "aime24"):  # 60 problems, and 30 with two responses
        samples = tmp_path / results / "runs/mpo_dynamic/seed0/evaluation" / f"{benchmark}.jsonl"
        assert len(samples.read_text().splitlines()) == 60
