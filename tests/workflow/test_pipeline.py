"""The whole workflow with real jobs: the smoke study, twice; real problem sets; what runs again and what does not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policygrain.analysis.controls import EXPECTED, controls
from policygrain.evaluate.evaluation import evaluate
from policygrain.files import read_json, read_json_lines
from policygrain.results.layout import DataFolder, StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.study import load_study

from ..support.leftovers import swept
from ..support.snakemake import Done, jobs, planned, snakemake

pytestmark = pytest.mark.slow


SMOKE = "studies/smoke.yaml"


@pytest.fixture(scope="module")
def smoke(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished smoke study, MLflow included."""
    folder = tmp_path_factory.mktemp("smoke")
    done = snakemake(root, folder, SMOKE, "all")
    assert re.search(r" jobs done, \d+ running, \d+ waiting; .* so far", done.stderr)
    assert "rule train:" not in done.stderr and "The report is in results/smoke/report.html." in done.stderr
    return folder


def test_everything_is_there(smoke: Path) -> None:
    results = smoke / "results" / "smoke"
    for figure in load_study(SMOKE).figures:
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
    assert planned(root, smoke, SMOKE, "all") == {}


def test_a_copy_without_metadata_and_with_other_times_is_finished_too(smoke: Path, root: Path, tmp_path: Path) -> None:
    """As `cp -r` or a checkout leaves it: what is older than what it was made from is up to date all the same."""
    shutil.copytree(smoke / "results", tmp_path / "results", copy_function=shutil.copy)
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    for path in files:
        day = 86_400 * (1 + sum(path.name.encode()) % 100)
        os.utime(path, (day, day))
    assert planned(root, tmp_path, SMOKE, "all") == {} and planned(root, tmp_path, SMOKE, "figures") == {}
    figures = tmp_path / "results" / "smoke" / "figures"
    before = (figures / "dynamics.png").read_bytes()
    shutil.rmtree(figures)
    assert jobs(snakemake(root, tmp_path, SMOKE, "figures")) == {"figure": len([*figures.glob("*.png")])}
    assert (figures / "dynamics.png").read_bytes() == before
    assert planned(root, tmp_path, SMOKE, "all") == {}


def test_a_change_runs_what_depends_on_it_and_no_more(smoke: Path, root: Path, tmp_path: Path) -> None:
    """With Snakemake's metadata there; test_reruns.py has every kind of change."""
    study = (root / SMOKE).read_text().replace("base: ../config.yaml", f"base: {root / 'config.yaml'}")

    def plan_of(old: str, new: str) -> dict[str, int]:
        assert old in study
        path = tmp_path / "study.yaml"
        path.write_text(study.replace(old, new))
        return planned(root, smoke, path, "all")

    assert set(plan_of("title: A smoke test", "title: Another")) == {"figure", "table", "track", "report_page"}
    assert plan_of("  checkpoint_every: 1", "  checkpoint_every: 2\n  threads: 2") == {}
    fewer = plan_of("[grpo, tepo]", "[tepo]")
    assert "train" not in fewer and "start_model" not in fewer
    more = plan_of("[grpo, tepo]", "[grpo, tepo, mpo]")
    assert more["train"] == 2 and "start_model" not in more
    seeds = plan_of("seeds: [0, 1]", "seeds: [0, 1, 2]")
    assert seeds["train"] == 8 and "start_model" not in seeds, (
        "two initial models take turns; four of eight arms are controls"
    )
    clip = plan_of("experiments:\n", "methods:\n  grpo: {clip: {low: 0.1}}\n\nexperiments:\n")
    assert clip["train"] == 8 and "estimators" not in clip, "the method of the controls, in four arms"


def test_mlflow_mirrors_the_records_once(smoke: Path, root: Path) -> None:
    import mlflow

    store = mlflow.MlflowClient(f"sqlite:///{smoke}/results/mlflow.db")
    experiment = store.get_experiment_by_name("smoke")
    assert experiment is not None

    def runs() -> dict[str, mlflow.entities.Run]:
        return {r.info.run_name: r for r in store.search_runs([experiment.experiment_id])}

    first = runs()
    assert {"grpo", "tepo", "grpo seed 0", "tepo seed 1", "figures and tables"} <= set(first)
    child = first["tepo seed 1"]
    assert child.data.tags["arm"] == first["tepo"].data.tags["arm"] == "tepo"
    assert child.data.params["method.ratio.name"] == "sequence" and child.data.params["training.steps"] == "3"
    rows = read_json_lines(smoke / "results/smoke/runs/tepo/seed1/metrics.jsonl")
    history = store.get_metric_history(child.info.run_id, "validation_accuracy")
    truth = [(r["step"], r["validation_accuracy"]) for r in rows if "validation_accuracy" in r]
    assert [(m.step, m.value) for m in history] == truth
    table = read_json(Path(store.download_artifacts(child.info.run_id, "samples.json")))
    assert table["columns"] == ["benchmark", "id", "problem", "response", "gold", "outcome"]
    assert len(table["data"]) == 10  # five of each benchmark
    assert '"table"' in child.data.tags["mlflow.loggedArtifacts"]
    artifacts = store.list_artifacts(first["figures and tables"].info.run_id, "figures")
    assert "figures/dynamics.png" in [f.path for f in artifacts]
    # Again: the same runs, no point twice.
    (smoke / "results" / "smoke" / "mlflow.json").unlink()
    snakemake(root, smoke, SMOKE, "all")
    assert {n: r.info.run_id for n, r in runs().items()} == {n: r.info.run_id for n, r in first.items()}
    again = store.get_metric_history(child.info.run_id, "validation_accuracy")
    assert [(m.step, m.value) for m in again] == truth


@pytest.fixture(scope="module")
def mlflow_ui(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`make ui` on the smoke study's store: the address it answers at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{smoke}/results/mlflow.db"]
    address = f"http://127.0.0.1:{port}"
    with swept(tmp_path_factory.mktemp("ui")) as mark:
        environment = {**os.environ, **mark, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(120):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/health", timeout=2).close()
                break
            time.sleep(0.5)
        else:
            pytest.fail("mlflow ui did not answer within a minute")
        yield address


def test_mlflow_pages_open_in_a_browser(smoke: Path, mlflow_ui: str, chromium: Callable[..., Done]) -> None:
    """The experiment with its parent runs, a child with its metrics, two children compared, a figure."""
    import mlflow

    store = mlflow.MlflowClient(f"sqlite:///{smoke}/results/mlflow.db")
    experiment = store.get_experiment_by_name("smoke")
    assert experiment is not None
    runs = {r.info.run_name: r.info.run_id for r in store.search_runs([experiment.experiment_id])}

    def page(address: str) -> str:
        return chromium(f"{mlflow_ui}/#/{address}", "--virtual-time-budget=30000", "--dump-dom").stdout

    listed = page(f"experiments/{experiment.experiment_id}/runs")
    assert all(name in listed for name in ("grpo", "tepo", "figures and tables"))
    child = page(f"experiments/{experiment.experiment_id}/runs/{runs['tepo seed 1']}")
    assert "validation_accuracy" in child and "method.ratio" in child
    pair = f'["{runs["tepo seed 0"]}","{runs["tepo seed 1"]}"]'
    compared = page(f"compare-runs?runs={pair}&experiments=[%22{experiment.experiment_id}%22]")
    assert "tepo seed 0" in compared and "tepo seed 1" in compared
    figures = page(f"experiments/{experiment.experiment_id}/runs/{runs['figures and tables']}/artifacts")
    assert "figures" in figures and "tables" in figures


def kill_when(condition: Callable[[], bool], root: Path, folder: Path, *targets: str) -> None:
    """Call Snakemake and, as soon as the condition holds, kill it with its jobs, as a power cut would."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(folder)]
    command += ["--configfile", str(root / SMOKE), "--cores", "2", *targets]
    output = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as process:
        try:
            end = time.monotonic() + 300
            while not condition():
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_two_runs_of_the_study_give_identical_metrics(smoke: Path, root: Path, tmp_path: Path) -> None:
    """The second is killed in its middle and called again: it resumes."""
    runs = sorted((smoke / "results" / "smoke" / "runs").glob("*/seed*/metrics.jsonl"))
    names = [str(run.relative_to(smoke)) for run in runs]
    targets = [str(path.relative_to(smoke)) for path in (smoke / "results/smoke/done/train").rglob("*.json")]
    kill_when(lambda: any(tmp_path.glob("results/smoke/runs/*/seed*/checkpoints/*")), root, tmp_path, *targets)
    assert not any(Path(tmp_path / target).exists() for target in targets)
    begun = {path: path.read_bytes() for path in tmp_path.glob("results/smoke/runs/*/seed*/metrics.jsonl")}
    assert begun
    snakemake(root, tmp_path, SMOKE, *targets)
    assert len(names) == 16
    for name in names:
        assert (tmp_path / name).read_bytes() == (smoke / name).read_bytes(), name
    for path, lines in begun.items():
        assert path.read_bytes().startswith(lines)
    assert not list(tmp_path.glob("results/smoke/runs/*/seed*/superseded-*"))


def test_an_evaluation_in_parts_is_that_in_one(smoke: Path, root: Path, tmp_path: Path) -> None:
    """Two jobs sample, a third grades: the same rollouts; the files of the parts are removed and not missed."""
    there, here = smoke / "results" / "smoke", tmp_path / "results" / "smoke"
    left_out = shutil.ignore_patterns("evaluation", "evaluate", "tokens", "checkpoints", "figures", "tables")
    shutil.copytree(there, here, ignore=left_out)
    path = tmp_path / "study.yaml"
    text = (root / SMOKE).read_text().replace("../config.yaml", str(root / "config.yaml"))
    whole = text.replace("evaluation:\n", "evaluation:\n  engine: transformers\n")
    path.write_text(whole.replace("transformers\n", "transformers\n  parts: 2\n"))
    done = snakemake(root, tmp_path, path, "--until", "evaluate", "--", "all")
    assert jobs(done) == {"evaluate_part": 2, "evaluate": 1}
    [finished] = (here / "done" / "evaluate").iterdir()
    assert planned(root, tmp_path, path, str(finished.relative_to(tmp_path))) == {}
    path.write_text(whole)
    assert planned(root, tmp_path, path, str(finished.relative_to(tmp_path))) == {}
    models = {name: here / "runs" / name / "model" for name in ("tepo/seed1", "grpo/seed0")}
    alone = StudyFolder(tmp_path / "alone")
    keys = evaluate(load_study(path), models, DataFolder(here / "data"), alone)
    assert keys == {name: key for name, key in read_json(finished)["results"].items() if name in models}
    for name in models:
        in_parts, at_once = (study.evaluation(name) for study in (StudyFolder(here), alone))
        assert read_json(in_parts.record)["records"] == read_json(at_once.record)["records"]
        for benchmark in ("count", "running_total"):
            assert in_parts.samples(benchmark).read_bytes() == at_once.samples(benchmark).read_bytes()
        assert not in_parts.all_responses()


def test_real_problem_sets_pass_through_every_stage(root: Path, tmp_path: Path, benchmarks_folder: Path) -> None:
    snakemake(root, tmp_path, "studies/real-text.yaml", "all", POLICYGRAIN_DATA=str(benchmarks_folder))
    results = tmp_path / "results" / "real-text"
    assert "| MPO, dynamic sampling (no updates) |" in (results / "tables" / "results.md").read_text()
    samples = (results / "runs/mpo_dynamic/seed0/evaluation/math500.jsonl").read_text().splitlines()
    assert len(samples) == 60
    assert len((results / "runs/mpo_dynamic/seed0/evaluation/aime24.jsonl").read_text().splitlines()) == 60
