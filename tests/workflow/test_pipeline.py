"""The whole workflow with real jobs: the smoke study, twice; real problem sets; what is left of a killed call.

The study is in a checkout whose folder has an odd name.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policygrain.figures.catalogue import draw
from policygrain.records import TrackingRecord, read_record
from policygrain.results import StudyResults, evaluated_samples, samples, start_model
from policygrain.study import load_study

from ..support.small import write_study
from ..support.snakemake import TIMEOUT, copy_checkout, jobs, planned, snakemake
from .test_kills import LEFT_OVER

pytestmark = pytest.mark.slow

ODD = "a b/c'd$e $(touch x)"
SMOKE = "study.yaml"  # in the folder of a finished study
CHANGES: dict[str, Any] = {
    "name": "smoke",
    # Fewer processes, and none of them starts vLLM: the study of real sets does.
    "seeds_per_process": "all",
    "evaluation": {"engine": "transformers"},
    "experiments": {"headline": {"methods": ["grpo", "tepo"]}},
    "figures": ["dynamics"],  # the others are drawn from its records, without a process for each
}


@pytest.fixture(scope="module")
def smoke(root, tmp_path_factory):
    """A checkout, with its environment, in a folder with an odd name: the smoke study is finished there, as by a user.

    MLflow included.
    """
    folder = tmp_path_factory.mktemp("smoke")
    checkout = folder / ODD / "policygrain"
    copy_checkout(root, checkout)
    (checkout / ".venv").symlink_to(Path(sys.prefix))
    write_study(checkout / SMOKE, {"base": "tests/support/every_stage.yaml", **CHANGES})
    done = subprocess.run(
        [checkout / ".venv/bin/python", "-m", "snakemake", "--cores", "2", "--configfile", SMOKE, "--", "all"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), "MLFLOW_TRACKING_URI": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "train tepo, seeds 0 1" in done.stderr
    assert not list(folder.rglob("x")), "no shell has run what is in the name"
    assert not [path for path in checkout.joinpath("results").rglob("*") if LEFT_OVER.search(path.name)]
    return checkout


def test_everything_is_there(smoke, tmp_path):
    results = StudyResults(smoke / "results" / "smoke")
    for figure in load_study(smoke / "tests/support/every_stage.yaml").figures:
        drawn = results.folder.figure(figure)
        if figure not in CHANGES["figures"]:
            draw(figure, results, drawn := tmp_path / figure)
        assert drawn.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        assert drawn.with_suffix(".png").stat().st_size > 10_000
    assert "| TEPO |" in results.folder.table("results", ".md").read_text()
    assert "running_total" in results.folder.table("results", ".csv").read_text()
    assert "AUC: mean validation accuracy" in results.folder.table("contrasts", ".md").read_text()


def test_the_records_are_read_without_data_and_models(smoke, tmp_path):
    ignored = shutil.ignore_patterns("model", "checkpoints", "data", "*.safetensors")
    results = StudyResults(Path(shutil.copytree(smoke / "results" / "smoke", tmp_path / "copy", ignore=ignored)))
    assert set(results.trained) == set(results.summaries) == set(results.matrix.runs)
    assert results.steps.groupby("arm")["step"].max().unique().tolist() == [3]
    tracked = read_record(TrackingRecord, results.folder.tracking, "").runs
    assert set(tracked) == {run.name for run in results.matrix.runs}
    assert start_model(results.folder.start(0)).seed == 0
    for name, evaluation in results.model_evaluations.items():
        for record in evaluation.records:
            assert len(evaluated_samples(results.folder.evaluation(name), record)) == sum(record.outcomes.values())


def test_a_second_time_there_is_nothing_to_do(smoke, root):
    assert planned(root, smoke, smoke / SMOKE, "all") == {}


def test_a_copy_without_metadata_and_with_other_times_is_finished_too(smoke, root, tmp_path):
    """As `cp -r` or a checkout leaves it: jobs that are started find their results, and train and sample nothing."""
    shutil.copytree(smoke / "results", tmp_path / "results", copy_function=shutil.copy)
    for path in (tmp_path / "results").rglob("*"):
        day = 86_400 * (1 + sum(path.name.encode()) % 100)
        os.utime(path, (day, day))
    results = tmp_path / "results" / "smoke"

    def made() -> dict[Path, bytes]:
        names = ("metrics.jsonl", "timings.jsonl", "model.safetensors", "records.json", "dynamics.png")
        return {path: path.read_bytes() for name in names for path in results.rglob(name)}

    before = made()
    assert jobs(snakemake(root, tmp_path, smoke / SMOKE, "all")) != {}
    assert made() == before
    assert planned(root, tmp_path, smoke / SMOKE, "all") == {}


@pytest.mark.release
def test_real_problem_sets_pass_through_every_stage(root, tmp_path, benchmarks_folder):
    """To the table of results; figures, report and MLflow read the same records as of the smoke study."""
    results = Path("results") / "real-text"
    table = results / "tables" / "results.md"
    snakemake(root, tmp_path, "tests/support/real_text.yaml", str(table), POLICYGRAIN_DATA=str(benchmarks_folder))
    assert "| MPO, dynamic sampling (no updates) |" in (tmp_path / table).read_text()
    rows = samples(tmp_path / results / "runs/mpo_dynamic/seed0/evaluation/samples.parquet")
    # 60 problems, and 30 with two responses.
    assert rows["benchmark"].value_counts().to_dict() == {"math500": 60, "aime24": 60}
