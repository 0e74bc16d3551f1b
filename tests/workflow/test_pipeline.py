"""The whole workflow with real jobs: the smoke study, twice; real problem sets; what runs again and what does not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policygrain.evaluate.run import evaluate
from policygrain.files import read_json, read_json_lines
from policygrain.study import load_study

from ..support.leftovers import swept

pytestmark = pytest.mark.pipeline


Done = subprocess.CompletedProcess[str]


def snakemake(root: Path, folder: Path, study: str, *arguments: str, **environment: str) -> Done:
    """Snakemake as a user calls it, in a working folder of its own; fails loudly."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(folder)]
    # Snakemake takes everything after --configfile for configuration files, so it comes last.
    command += [*arguments, "--cores", "2", "--configfile", str(root / study)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def matrix(done: Done) -> dict[str, int]:
    """Rule → jobs, off a dry run's table."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)}


@pytest.fixture(scope="module")
def smoke(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished smoke study, MLflow included."""
    folder = tmp_path_factory.mktemp("smoke")
    snakemake(root, folder, "studies/smoke.yaml", "all", MLFLOW_TRACKING_URI="")
    return folder


def test_everything_is_there(smoke: Path) -> None:
    results = smoke / "results" / "smoke"
    for figure in ("benchmarks", "dynamics", "clip_ratio", "stress"):
        assert (results / "figures" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
        assert (results / "figures" / f"{figure}.png").stat().st_size > 10_000
    assert "| TEPO |" in (results / "tables" / "results.md").read_text()
    assert "running_total" in (results / "tables" / "results.csv").read_text()
    assert (results / "runs" / "tepo" / "seed1" / "evaluation" / "count.jsonl").exists()


def test_a_second_time_there_is_nothing_to_do(smoke: Path, root: Path) -> None:
    assert matrix(snakemake(root, smoke, "studies/smoke.yaml", "--dry-run", "all")) == {}


def test_a_change_runs_what_hangs_on_it_and_no_more(smoke: Path, root: Path, tmp_path: Path) -> None:
    study = (
        (root / "studies" / "smoke.yaml").read_text().replace("base: ../config.yaml", f"base: {root / 'config.yaml'}")
    )

    def plan_of(changed: str) -> dict[str, int]:
        assert changed != study
        path = tmp_path / "study.yaml"
        path.write_text(changed)
        return matrix(snakemake(root, smoke, str(path), "--dry-run", "all"))

    assert "train" not in plan_of(study.replace("title: A smoke test", "title: Another"))
    fewer = plan_of(study.replace("[grpo, tepo]", "[tepo]"))
    assert "train" not in fewer and "start_model" not in fewer
    more = plan_of(study.replace("[grpo, tepo]", "[grpo, tepo, mpo]"))
    assert more["train"] == 1 and "start_model" not in more
    seeds = plan_of(study.replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    assert seeds["train"] == 2 and seeds["start_model"] == 1
    clip = plan_of(study.replace("methods:\n  token_none", "methods:\n  grpo: {clip: {low: 0.1}}\n  token_none"))
    assert clip["train"] == 1


def test_figures_are_redrawn_without_training(smoke: Path, root: Path) -> None:
    figure = smoke / "results" / "smoke" / "figures" / "dynamics.png"
    before = figure.read_bytes()
    figure.unlink()
    jobs = matrix(snakemake(root, smoke, "studies/smoke.yaml", "--dry-run", "figures"))
    assert set(jobs) == {"figure_dynamics", "figures", "total"}
    snakemake(root, smoke, "studies/smoke.yaml", "figures")
    assert figure.read_bytes() == before


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
    assert child.data.tags["mlflow.parentRunId"] == first["tepo"].info.run_id
    assert child.data.params["method.ratio"] == "sequence" and child.data.params["training.steps"] == "3"
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
    snakemake(root, smoke, "studies/smoke.yaml", "all", MLFLOW_TRACKING_URI="")
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


def test_two_runs_of_the_study_give_identical_metrics(smoke: Path, root: Path, tmp_path: Path) -> None:
    runs = sorted((smoke / "results" / "smoke" / "runs").glob("*/seed*/metrics.jsonl"))
    names = [str(run.relative_to(smoke)) for run in runs]
    trained = (smoke / "results" / "smoke" / "runs").glob("*/trained-*.json")
    snakemake(root, tmp_path, "studies/smoke.yaml", *[str(path.relative_to(smoke)) for path in trained])
    assert len(names) == 6
    for name in names:
        assert (tmp_path / name).read_bytes() == (smoke / name).read_bytes(), name


def test_an_evaluation_in_parts_is_that_in_one(smoke: Path, root: Path, tmp_path: Path) -> None:
    """Two jobs draw, a third judges: the same samples, and what says that they were drawn is not missed."""
    there, here = smoke / "results" / "smoke", tmp_path / "results" / "smoke"
    for item in ("data", "start", "runs"):
        shutil.copytree(there / item, here / item, ignore=shutil.ignore_patterns("evaluation", "tokens", "checkpoints"))
    path, target = tmp_path / "study.yaml", "results/smoke/evaluation/00.jsonl"
    text = (root / "studies" / "smoke.yaml").read_text().replace("../config.yaml", str(root / "config.yaml"))
    whole = text.replace("evaluation:\n", "evaluation:\n  engine: transformers\n")
    path.write_text(whole.replace("transformers\n", "transformers\n  parts: 2\n"))
    done = snakemake(root, tmp_path, str(path), target)
    assert matrix(done)["evaluate_part"] == 2 and matrix(done)["evaluate"] == 1
    assert [p.name for p in (here / "evaluation").iterdir() if p.is_file()] == ["00.jsonl"]
    assert matrix(snakemake(root, tmp_path, str(path), "--dry-run", target)) == {}
    path.write_text(whole)
    models = {"tepo/seed1": here / "runs/tepo/seed1/model"}
    records = [r for r in read_json_lines(tmp_path / target) if r["model"] == "tepo/seed1"]
    samples = here / "runs/tepo/seed1/evaluation"
    shutil.move(samples, tmp_path / "parts")
    evaluate(load_study(path), models, here / "data", tmp_path / "whole.jsonl")
    assert read_json_lines(tmp_path / "whole.jsonl") == records and len(records) == 2
    for name in ("count.jsonl", "running_total.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (samples / name).read_bytes()


def test_real_problem_sets_pass_through_every_stage(root: Path, tmp_path: Path, benchmarks_folder: Path) -> None:
    environment = {"POLICYGRAIN_DATA": str(benchmarks_folder), "MLFLOW_TRACKING_URI": ""}
    snakemake(root, tmp_path, "studies/real-text.yaml", "all", **environment)
    results = tmp_path / "results" / "real-text"
    assert "| MPO |" in (results / "tables" / "results.md").read_text()
    samples = (results / "runs/mpo/seed0/evaluation/math500.jsonl").read_text().splitlines()
    assert len(samples) == 60
    assert len((results / "runs/mpo/seed0/evaluation/aime24.jsonl").read_text().splitlines()) == 60


def test_a_misspelt_key_ends_in_one_message(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"base: {root / 'config.yaml'}\nname: x\ntraining: {{stepz: 3}}\n")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(tmp_path)]
    command += ["all", "--cores", "1", "--configfile", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "training.stepz: unknown key. Did you mean 'steps'" in done.stderr
    assert "Traceback" not in done.stderr
