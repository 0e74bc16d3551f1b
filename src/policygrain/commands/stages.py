"""Stages of a study, which the workflow calls. Each works alone, too, and reads and writes the study's results."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument

from ..errors import UserError, did_you_mean
from ..objective import comparison_names, method_names
from ..paths import START, DataFolder, RunFolder, StudyFolder
from ..records import EvaluatedArm, write_record
from ..results import StudyResults, start_model
from ..study import Study, load_study
from ..study.dependencies import settings, start_seed, start_seeds
from ..study.runs import Arm, run_matrix
from .app import CONFIG, Config, Results, app, option

GROUP = "Stages, which the workflow and make call; each works alone, too"
Seeds = Annotated[list[int] | None, option("seeds (default: the study's first)", "--seeds", "--seed", metavar="SEED")]


def recorded(config: Path, results: Path | None) -> StudyResults:
    """The results of a study, by default those in results/NAME."""
    study = load_study(config)
    return StudyResults(results or Path("results") / study.name, study)


def require_problems(folder: StudyFolder) -> DataFolder:
    """The folder of a study's problems. UserError if `prepare` has not written them."""
    if not folder.data.train.exists():
        raise UserError(f"{folder.data.path}: has no problems yet; run `policygrain prepare` first.")
    return folder.data


@app.command(rich_help_panel=GROUP)
def prepare(
    config: Config = CONFIG,
    results: Results = None,
    only: Annotated[Literal["training", "benchmarks"] | None, option("write only these problems")] = None,
) -> None:
    """Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl, in the folder data."""
    from ..data.golds import check_golds
    from ..data.sources import prepare_benchmarks, prepare_training
    from .check import check_study

    read = recorded(config, results)
    study, data = read.study, read.folder.data
    if only != "benchmarks":
        check_study(study)
        prepare_training(study, data)
        check_golds([data.train, data.validation], study.grader)
    if only != "training":
        prepare_benchmarks(study, require_problems(read.folder))
        check_golds([data.benchmark(name) for name in read.benchmarks], study.grader)


@app.command("start-model", rich_help_panel=GROUP)
def start_model_(config: Config = CONFIG, results: Results = None, seeds: Seeds = None) -> None:
    """Make a study's initial models, tiny or fine-tuned, after `prepare`.

    Each is trained by supervised fine-tuning and saved with its tokenizer, in start/seedS. One that a study beside this
    one has made from the same settings, problems and seed is copied.
    """
    from ..model.device import claim_gpu
    from ..train.start_model import ensure_start_model

    read = recorded(config, results)
    claim_gpu()
    for seed in seeds or read.study.seeds[:1]:
        made = read.folder.start(seed)
        beside = (StudyFolder(path).start(seed) for path in sorted(read.folder.path.parent.iterdir()))
        ensure_start_model(read.study, seed, require_problems(read.folder), made, beside)
        write_record(read.folder.start_record(seed), start_model(made))


@app.command(rich_help_panel=GROUP)
def train(
    config: Config = CONFIG,
    results: Results = None,
    arm: Annotated[str | None, option("method, or arm of the study (default: the study's first)")] = None,
    seeds: Seeds = None,
    run_dir: Annotated[Path | None, option("folder of the run (default: in the study's results)")] = None,
    time_limit: Annotated[
        float | None,
        option("save and exit with 75 before this time (default: what is left of the SLURM job)", metavar="MINUTES"),
    ] = None,
) -> None:
    """Train runs, or resume them; finished runs are left as they are.

    Problems and initial models are those of the study's results, after `prepare` and `start-model`. With
    `training.trainer: trl`, all processes that torchrun or srun starts train each run together; with `verl`, srun
    starts one process per node.
    """
    from ..model.device import claim_gpu
    from ..tracking import live
    from ..train.stopping import Stop, deadline
    from ..trainers.launch import processes, read_slurm
    from ..trainers.run import train_run

    read = recorded(config, results)
    study, folder, chosen, seeds = read.study, read.folder, find_arm(read.study, arm), seeds or read.study.seeds[:1]
    if len(seeds) > 1 and run_dir:
        raise UserError("--run-dir: is the folder of one run; leave it out, or name one seed.")
    data, starts = require_problems(folder), {seed: start_of(study, folder, seed) for seed in seeds}
    if chosen.training.trainer not in ("verl", "command"):  # their own processes take what is visible
        read_slurm()
        claim_gpu()
    with Stop(deadline(time_limit)) as stop, processes(chosen.training):
        for seed, start in starts.items():
            run = RunFolder(run_dir) if run_dir else folder.run(chosen.name, seed)
            tracked = nullcontext if run_dir else partial(live, study, folder, run)
            train_run(study, chosen, seed, run, str(start), data, stop, tracked)
            if not run_dir:
                evaluate_after_training(study, folder, chosen, seed)


def evaluate_after_training(study: Study, folder: StudyFolder, arm: Arm, seed: int) -> None:
    """With `evaluation.after_training`, evaluate the model of a run that has just ended."""
    from ..train.ranks import on_rank_0

    if study.evaluation.after_training and arm.name in run_matrix(study).evaluated_arms:
        from ..evaluate.evaluation import evaluate_study

        model = {f"{arm.name}/seed{seed}": folder.run(arm.name, seed).model}
        on_rank_0(lambda: evaluate_study(study, model, folder.data, folder))


def start_of(study: Study, folder: StudyFolder, seed: int) -> Path:
    """The folder or name of the model that runs of a seed begin from. UserError if `start-model` has not made it."""
    if not study.model.is_made:
        return Path(study.model.start)
    start = folder.start(first := start_seed(study, seed))
    if not start.record.exists():
        raise UserError(f"{start.path}: has no initial model yet; run `policygrain start-model --seed {first}` first.")
    return start.path


def find_arm(study: Study, name: str | None) -> Arm:
    """An arm of the study (default: its first), or a method that no experiment names. UserError for anything else."""
    arms = run_matrix(study).arms
    if name is None:
        return next(iter(arms.values()))
    known = [*arms, *study.methods, *method_names(), *comparison_names()]
    if name not in known:
        raise UserError(f"--arm: the study has no arm, and there is no method, {name!r}.{did_you_mean(name, known)}")
    return arms.get(name) or Arm.of(study, name)


@app.command(rich_help_panel=GROUP)
def evaluate(
    config: Config = CONFIG,
    results: Results = None,
    arms: Annotated[
        list[str] | None, option("arms, or start: the initial models (default: all)", "--arms", "--arm")
    ] = None,
) -> None:
    """Evaluate a study's initial and final models on its benchmarks, all in one engine.

    Models that were evaluated under the same protocol before are not sampled again.
    """
    from ..evaluate.evaluation import evaluate_study
    from ..model.device import claim_gpu

    read = recorded(config, results)
    study, folder, known = read.study, read.folder, [START, *read.matrix.evaluated_arms]
    for name in arms or ():
        if name not in known:
            raise UserError(f"--arms: the study evaluates no arm {name!r}.{did_you_mean(name, known)}")
    data, models = require_problems(folder), {arm: models_of(study, folder, arm) for arm in arms or known}
    claim_gpu()
    keys = evaluate_study(study, {n: m for of in models.values() for n, m in of.items()}, data, folder)
    for arm, of in models.items():
        of_arm = EvaluatedArm(settings=settings(study, "evaluation"), models={name: keys[name] for name in of})
        write_record(folder.evaluated(arm), of_arm)


def models_of(study: Study, folder: StudyFolder, arm: str) -> dict[str, Path]:
    """Name → folder, or name on a hub, of the models of an arm, or of the initial models."""
    if arm == START:
        return {f"{START}/seed{seed}": start_of(study, folder, seed) for seed in start_seeds(study)}
    runs = [run for run in run_matrix(study).evaluated if run.arm == arm]
    return {run.name: folder.run(run.arm, run.seed).model for run in runs}


@app.command(rich_help_panel=GROUP)
def figure(
    names: Annotated[list[str], Argument(help="figures or tables; see `figures` in the study file")],
    config: Config = CONFIG,
    results: Results = None,
) -> None:
    """Draw figures, or write tables, from a study's records.

    A figure is written as PDF, SVG and PNG, a table as CSV, Markdown and LaTeX, in figures/ or tables/ of the results.
    """
    from ..figures.catalogue import draw

    read = recorded(config, results)
    for name in names:
        draw(name, read)


@app.command(rich_help_panel=GROUP)
def report(
    config: Config = CONFIG,
    results: Results = None,
    captions: Annotated[Path, option("folder of captions, NAME.rst")] = Path("workflow/report"),
    screen: Annotated[
        bool,
        option("instead, check that every run and evaluation is there and print the overview: 15 lines", "--screen"),
    ] = False,
) -> None:
    """Write a study's report: one self-contained HTML page, report.html in the results.

    It has the figures, tables of accuracy and comparisons, the evaluation protocol, and where every number comes from.
    """
    read = recorded(config, results)
    if screen:
        from ..figures import overview

        overview.check_complete(read)
        print(overview.screen(read))
    else:
        from ..figures.page import write_report

        write_report(read, captions, read.folder.report)


@app.command(rich_help_panel=GROUP)
def track(config: Config = CONFIG, results: Results = None) -> None:
    """Copy a study's records to MLflow.

    Records that are already in MLflow are not logged again.
    """
    from .. import tracking

    read = recorded(config, results)
    write_record(read.folder.tracking, tracking.track(read))


@app.command(rich_help_panel=GROUP)
def ui(
    config: Config = CONFIG,
    results: Results = None,
    port: Annotated[int, option("port of the server on this machine")] = 5000,
) -> None:
    """Print where a study's runs are in MLflow, and serve it in the browser.

    With a tracking server (`tracking.uri`, MLFLOW_TRACKING_URI) the address is only printed; otherwise the local store
    is served until Ctrl-C.
    """
    from ..tracking import serve

    read = recorded(config, results)
    serve(read.folder, read.study, port)
