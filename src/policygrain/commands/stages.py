"""Stages of a study, which the workflow calls. Each works alone, too, and reads and writes the study's results."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .command import ARM, CONFIG, DONE, RESULTS, RUN_DIR, SEEDS, command, flag, job, option, path

if TYPE_CHECKING:
    from ..paths import DataFolder, RunFolder, StudyFolder
    from ..results import StudyResults
    from ..study import Study
    from ..study.runs import Arm


def study_and_folder(arguments: Namespace) -> tuple[Study, StudyFolder]:
    """The study, and the folder of its results (default: `results/NAME`)."""
    from ..paths import StudyFolder
    from ..study import load_study

    study = load_study(arguments.config)
    return study, StudyFolder(arguments.results or Path("results") / study.name)


def require_problems(folder: StudyFolder) -> DataFolder:
    """The folder of a study's problems. UserError if `prepare` has not written them."""
    from ..errors import UserError

    if not folder.data.train.exists():
        raise UserError(f"{folder.data.path}: has no problems yet; run `policygrain prepare` first.")
    return folder.data


def recorded(arguments: Namespace) -> StudyResults:
    """The results of a study that may have been recorded by an earlier version."""
    from ..results import StudyResults
    from ..study import load_recorded_study

    study = load_recorded_study(arguments.config)
    return StudyResults(arguments.results or Path("results") / study.name, study)


# Problems and initial models.


@command(CONFIG, RESULTS, path("--done", "files to write at the end", nargs="+", default=[]))
def prepare(arguments: Namespace) -> None:
    """Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl, in the folder data."""
    from ..data import sources
    from ..data.golds import check_golds
    from ..job_state import begin, write_done
    from ..results import prepared_data
    from .check import check_study

    study, folder = study_and_folder(arguments)
    data = folder.data
    check_study(study)
    for done in arguments.done:
        begin(done, [])
    sources.prepare(study, data)
    files = [data.train, data.validation, *(data.benchmark(b.name) for b in study.evaluation.benchmarks)]
    check_golds(files, study.grader)
    if prepared := prepared_data(data):
        for done in arguments.done:
            write_done(done, prepared.files)


@command(CONFIG, RESULTS, SEEDS, DONE)
def start_model(arguments: Namespace) -> None:
    """Build a study's tiny initial models, after `prepare`.

    Each is trained by supervised fine-tuning and saved with its tokenizer, in start/seedS.
    """
    from .. import results
    from ..model.device import claim_gpu
    from ..train.start_model import ensure_start_model

    study, folder = study_and_folder(arguments)
    claim_gpu()
    seeds = arguments.seeds or study.seeds[:1]
    with job(arguments.done, [f"seed{seed}" for seed in seeds]) as digests:
        for seed in seeds:
            ensure_start_model(study, seed, require_problems(folder), folder.start(seed))
            digests[f"seed{seed}"] = results.start_model(folder.start(seed)).digest


# Training and evaluation.


@command(
    CONFIG,
    RESULTS,
    ARM,
    SEEDS,
    RUN_DIR,
    DONE,
    option(
        "--time-limit",
        "save and exit with 75 before this time is over (default: what is left of the SLURM job)",
        type=float,
        metavar="MINUTES",
    ),
)
def train(arguments: Namespace) -> None:
    """Train runs, or resume them; finished runs are left as they are.

    Problems and initial model are taken from the study's results. If one is missing there, it is made in the run's
    folder; with --run-dir and without --results, both are. With `training.trainer: trl`, all processes that torchrun or
    srun starts train each run together; with `verl`, srun starts one process per node.
    """
    from ..errors import UserError
    from ..job_state import begin, write_done
    from ..model.device import claim_gpu
    from ..study.runs import run_matrix
    from ..train.ranks import on_rank_0, ranks
    from ..train.stopping import Stop, deadline
    from ..trainers.launch import processes, read_slurm
    from ..trainers.run import train_run

    study, folder = study_and_folder(arguments)
    arm = find_arm(study, arguments.arm)
    seeds = arguments.seeds or study.seeds[:1]
    if len(seeds) > 1 and arguments.run_dir:
        raise UserError("--run-dir: is the folder of one run; leave it out, or name one seed.")
    after_training = study.evaluation.after_training and arm.name in run_matrix(study).evaluated_arms
    keys = {}
    if arm.training(study).trainer != "verl":  # its own processes take what is visible
        read_slurm()
        claim_gpu()
    with Stop(deadline(arguments.time_limit)) as stop, processes(arm.training(study)):
        if len(seeds) > 1 and study.training.engine == "vllm" and ranks()[1] > 1:
            # A vLLM engine that is shut down destroys the process group, which the ranks need for the next seed.
            raise UserError("--seeds: several ranks that sample with vLLM train one seed per process.")
        if arguments.done:
            on_rank_0(lambda: begin(arguments.done, [f"{arm.name}/seed{seed}" for seed in seeds]))
        for seed in seeds:
            run, start, data = run_inputs(arguments, study, folder, arm, seed)
            name = f"{arm.name}/seed{seed}"
            keys[name] = train_run(study, arm, seed, run, start, data, stop)
            if after_training and not arguments.run_dir:
                from ..evaluate.evaluation import evaluate

                model, problems = {name: run.model}, data or run.data
                on_rank_0(lambda model=model, problems=problems: evaluate(study, model, problems, folder))  # type: ignore[misc]
        if arguments.done:
            on_rank_0(lambda: write_done(arguments.done, keys))


def run_inputs(
    arguments: Namespace, study: Study, folder: StudyFolder, arm: Arm, seed: int
) -> tuple[RunFolder, str | None, DataFolder | None]:
    """The folder of a run, its initial model and its problems; None if these are to be made in the run's folder."""
    from ..paths import RunFolder
    from ..study.fingerprint import start_seed

    run = RunFolder(arguments.run_dir) if arguments.run_dir else folder.run(arm.name, seed)
    if arguments.run_dir and not arguments.results:
        return run, None, None
    start = folder.start(start_seed(study, seed))
    made = study.model.start == "tiny" and start.record.exists()
    return run, str(start.path) if made else None, folder.data if folder.data.train.exists() else None


def find_arm(study: Study, name: str | None) -> Arm:
    """An arm of the study (default: its first), or a method that no experiment names. UserError for anything else."""
    from ..errors import UserError, did_you_mean
    from ..objective import comparison_names, method_names
    from ..study.runs import Arm, run_matrix

    arms = run_matrix(study).arms
    if name is None:
        return next(iter(arms.values()))
    known = [*arms, *study.methods, *method_names(), *comparison_names()]
    if name not in known:
        raise UserError(f"--arm: the study has no arm, and there is no method, {name!r}.{did_you_mean(name, known)}")
    return arms.get(name) or Arm(name)


@command(CONFIG, RESULTS, option("--shard", "number of the group of models (default: all groups)"), DONE)
def evaluate(arguments: Namespace) -> None:
    """Evaluate a study's initial and final models on its benchmarks.

    Models that were evaluated under the same protocol before are not sampled again. `evaluation.runs_per_engine` is
    the size of a group.
    """
    from ..errors import UserError, did_you_mean
    from ..evaluate.evaluation import evaluate
    from ..model.device import claim_gpu
    from .jobs import Jobs

    study, folder = study_and_folder(arguments)
    claim_gpu()
    jobs = Jobs.of_results(study, folder)
    if arguments.shard is not None and arguments.shard not in jobs.shards:
        raise UserError(f"--shard: there is no group {arguments.shard!r}.{did_you_mean(arguments.shard, jobs.shards)}")
    shards = list(jobs.shards) if arguments.shard is None else [arguments.shard]
    models = {name: model for shard in shards for name, model in jobs.models(shard).items()}
    with job(arguments.done, models) as keys:
        keys.update(evaluate(study, models, require_problems(folder), folder))


# Figures, tables, the report and MLflow.


@command(
    CONFIG,
    RESULTS,
    option("name", "figure or table; see `figures` in the study file"),
    path("--out", "file without suffix (default: in figures/ or tables/ of the results)"),
    DONE,
)
def figure(arguments: Namespace) -> None:
    """Draw one figure, or write one table, from a study's records.

    A figure is written as PDF, SVG and PNG, a table as CSV and Markdown.
    """
    from ..figures.catalogue import draw

    results = recorded(arguments)
    with job(arguments.done, [arguments.name]) as digests:
        draw(arguments.name, results, arguments.out)
        digests[arguments.name] = results.fingerprints.figures()


@command(
    CONFIG,
    RESULTS,
    path("--captions", "folder of captions, NAME.rst (default: workflow/report)", default=Path("workflow/report")),
    path("--out", "HTML file (default: report.html in the results)"),
    flag("--screen", "instead, check that every result is there and print the overview: 15 lines"),
    DONE,
)
def report(arguments: Namespace) -> None:
    """Write a study's report: one self-contained HTML page.

    It has the figures, tables of accuracy and comparisons, the evaluation protocol, and where every number comes from.
    """
    results = recorded(arguments)
    if arguments.screen:
        from ..report.completeness import check_complete
        from ..report.overview import screen

        check_complete(results)
        print(screen(results))
        return
    from ..report.page import write_report

    page = arguments.out or results.folder.report
    with job(arguments.done, [page.name]) as digests:
        write_report(results, arguments.captions, page)
        digests[page.name] = results.fingerprints.tracking()


@command(
    CONFIG,
    RESULTS,
    option(
        "--follow",
        "log the steps of runs while they are trained, until the process PID, which must have started this, ends",
        type=int,
        metavar="PID",
    ),
    DONE,
)
def track(arguments: Namespace) -> None:
    """Copy a study's records to MLflow.

    Records that are already in MLflow are not logged again.
    """
    from ..records import write_record
    from ..report.mlflow_sync import follow, mirror

    results = recorded(arguments)
    if arguments.follow is not None:
        os.nice(10)  # lower priority than training
        follow(results, arguments.follow)
        return
    record = results.folder.tracking
    with job(arguments.done, [record.name]) as digests:
        write_record(record, mirror(results))
        digests[record.name] = results.fingerprints.tracking()
