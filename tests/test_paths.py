"""Paths: no two are equal, and a real study leaves no file that the layout does not name."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain import digests
from policygrain.data.sources import prepare
from policygrain.evaluate.evaluation import evaluate
from policygrain.figures import SUFFIXES, TABLES
from policygrain.figures.catalogue import draw
from policygrain.job_state import write_done
from policygrain.paths import Folder, Inside, RunFolder, StudyFolder, study_of
from policygrain.records import MtpHeadsRecord, read_record, write_record
from policygrain.report.mlflow_sync import mirror
from policygrain.report.page import write_report
from policygrain.results import StudyResults, evaluated_samples, start_model
from policygrain.train.start_model import ensure_start_model
from policygrain.trainers.run import train_run

from .support.small import small_study

ROOT = Path(__file__).parents[1]
ARGUMENTS: dict[str, Any] = {
    "arm": "grpo",
    "seed": 3,
    "model": "grpo/seed3",
    "name": "NAME",
    "benchmark": "NAME",
    "rule": "train",
    "fingerprint": "0" * 16,
    "key": "KEY",
    "number": 2,
    "suffix": ".csv",
}


def paths_of(folder: Any, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    """(name, path) of every path that a folder names, those of folders inside it too."""
    for name, member in inspect.getmembers_static(type(folder)):
        if name.startswith("_") or name in skip:
            continue
        if isinstance(member, property | Inside):
            found = getattr(folder, name)
        elif inspect.isfunction(member):
            parameters = [p for p in inspect.signature(member).parameters if p != "self"]
            found = getattr(folder, name)(*(ARGUMENTS[p] for p in parameters))
        else:
            continue
        if isinstance(found, Path):
            yield f"{type(folder).__name__}.{name}", found
        elif isinstance(found, Folder):
            yield f"{type(folder).__name__}.{name}", found.path
            yield from paths_of(found)


def test_no_two_paths_are_equal() -> None:
    """But for the evaluation of a run, which a study and the run both name."""
    named = list(paths_of(StudyFolder(Path("results/laptop")), skip=("evaluation",)))
    assert len(named) > 30
    names: dict[Path, list[str]] = {}
    for name, path in named:
        assert path.is_relative_to("results/laptop"), name
        names.setdefault(path, []).append(name)
    assert {path: found for path, found in names.items() if len(found) > 1} == {}
    folder = StudyFolder(Path("results/laptop"))
    assert folder.evaluation("grpo/seed3") == folder.run("grpo", 3).evaluation
    assert folder.evaluation("start/seed3").path == folder.start(3).path / "evaluation"


def test_products_are_all_of_a_run_but_what_is_the_folder_s_own() -> None:
    """What a run of other settings must not find in its folder; `config` is last, as it says whose the others are."""
    run = RunFolder(Path("x"))
    own = {run.lock, run.superseding, run.superseded("KEY"), run.data.path, run.start.path}
    named = {path for name, path in paths_of(run) if name.startswith("RunFolder.")}
    inside = {path for path in named if any(path.is_relative_to(p) and path != p for p in run.products)}
    assert named - own - inside == set(run.products) and run.products[-1] == run.config


def test_the_study_of_a_path(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "smoke")
    assert study_of(folder.run("grpo", 0).evaluation.record) is None
    folder.path.mkdir()
    folder.study.touch()
    for path in (folder.run("grpo", 0).path, folder.evaluation("start/seed0").record, folder.table("results", ".csv")):
        assert study_of(path) == folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """Every stage of a small study, with prediction heads and a second arm, figures, report and mirror."""
    folder = StudyFolder(tmp_path_factory.mktemp("results") / "small")
    ratio = {"future": "mtp_heads", "size": 2}
    study = small_study(
        experiments={"headline": {"methods": ["grpo", "heads"]}},
        methods={"heads": {"base": "mpo", "ratio": ratio, "mtp_heads": {"warmup_batches": 1}}},
        training={"steps": 2},
        figures=["benchmarks", "dynamics"],
    )
    folder.path.mkdir()
    folder.study.write_text(yaml.safe_dump(study.model_dump(mode="json")))
    results = StudyResults(folder.path, study)
    prepare(study, folder.data)
    ensure_start_model(study, 0, folder.data, folder.start(0))
    start = folder.start(0).path
    models = {"start/seed0": start}
    for run in results.matrix.runs:
        there = folder.run(run.arm, run.seed)
        key = train_run(study, results.matrix.arms[run.arm], run.seed, there, str(start), folder.data)
        write_done(folder.done("train", run.arm, results.fingerprints.run(run)), {run.name: key})
        models[run.name] = there.model
    evaluate(study, models, folder.data, folder)
    results = StudyResults(folder.path, study)
    for name in (*study.figures, *TABLES):
        draw(name, results)
    write_report(results, ROOT / "workflow" / "report", folder.report)
    tracking = study.tracking.model_copy(update={"uri": f"sqlite:///{folder.path.parent}/mlflow.db"})
    write_record(folder.tracking, mirror(StudyResults(folder.path, study.model_copy(update={"tracking": tracking}))))
    return folder


def test_every_file_of_a_real_study_is_one_that_the_layout_names(made: StudyFolder) -> None:
    results = StudyResults(made.path)
    runs = [made.run(run.arm, run.seed) for run in results.matrix.runs]
    evaluations = [folder for _, folder in made.evaluations()]
    known = {made.study, made.report, made.tracking, made.tracking_lock, made.start(0).record}
    known |= {made.data.train, made.data.validation, made.data.contamination, made.data.sources}
    known |= {made.data.benchmark(name) for name in results.benchmarks}
    known |= {made.figure(name, suffix) for name in results.study.figures for suffix in SUFFIXES}
    known |= {made.table(name, suffix) for name in TABLES for suffix in (".csv", ".md")}
    known |= {made.done("train", run.arm, results.fingerprints.run(run)) for run in results.matrix.runs}
    for run in runs:
        known |= {
            run.config,
            run.summary,
            run.metrics,
            run.timings,
            run.mtp_heads,
            run.lock,
            run.status,
        }
    for folder in evaluations:
        known |= {folder.record, folder.samples}
    # Files of models have the names that their library gives them.
    models = [made.start(0).path, *(run.model for run in runs)]
    known |= {path for model in models for pattern in digests.MODEL_FILES for path in model.glob(pattern)}
    found = {path for path in made.path.rglob("*") if path.is_file()}
    checkpoints = {path for path in found if any(path.is_relative_to(run.checkpoints) for run in runs)}
    assert sorted(found - known - checkpoints) == []
    missing = {path for path in known if not path.exists()}
    assert missing == {runs[0].mtp_heads}, "only one arm has prediction heads"


def test_a_real_study_is_read_without_data_and_models(made: StudyFolder, tmp_path: Path) -> None:
    shutil.copytree(
        made.path, tmp_path / "copy", ignore=shutil.ignore_patterns("model", "checkpoints", "data", "*.safetensors")
    )
    results = StudyResults(tmp_path / "copy")
    assert [run.name for run in results.trained] == ["grpo/seed0", "heads/seed0"] == [r.name for r in results.summaries]
    assert list(results.model_evaluations) == ["start/seed0", "grpo/seed0", "heads/seed0"]
    assert results.steps.groupby("arm")["step"].max().tolist() == [2, 2]
    assert results.tracking is not None and set(results.tracking.runs) == {"grpo/seed0", "heads/seed0"}
    heads = results.folder.run("heads", 0)
    assert read_record(MtpHeadsRecord, heads.mtp_heads, "").losses
    assert start_model(results.folder.start(0)).seed == 0
    for name, evaluation in results.model_evaluations.items():
        for record in evaluation.records:
            assert len(evaluated_samples(results.folder.evaluation(name), record)) == 30
