"""The commands of a study: those before it is run, and its stages, which the workflow calls."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument

from ..errors import UserError, did_you_mean
from ..objective import comparison_names, method, method_names
from ..paths import START, DataFolder, RunFolder, StudyFolder
from ..records import EvaluatedArm, write_record
from ..results import StudyResults, start_model
from ..study import Study, load_study
from ..study.dependencies import settings, start_seed, start_seeds
from ..study.runs import Arm, run_matrix
from .app import CONFIG, Config, Json, Results, app, option

GROUP = "Study"
STAGES = "Stages, which the workflow and make call; each works alone, too"
Seeds = Annotated[list[int] | None, option("seeds (default: the study's first)", "--seeds", "--seed", metavar="SEED")]


@app.command(rich_help_panel=GROUP)
def check(
    study: Annotated[Path, Argument(help="study file")] = CONFIG,
    slurm: Annotated[bool, option("ask SLURM whether it accepts the jobs; on a login node", "--slurm")] = False,
    profile: Annotated[Path, option("Snakemake profile of the cluster")] = Path("slurm/config.yaml"),
    as_json: Annotated[bool, option("print the arms and their seeds as JSON", "--json")] = False,
) -> None:
    """Check a study file, and on request a cluster, and print how many arms and runs it has."""
    from .check import check_cluster, check_study

    loaded = load_study(study)
    check_study(loaded)
    matrix = run_matrix(loaded)
    if as_json:
        seeds = {arm: [run.seed for run in runs] for arm, runs in matrix.by_arm().items()}
        arms = {arm: {"seeds": of, "evaluated": arm in matrix.evaluated_arms} for arm, of in seeds.items()}
        print(json.dumps({"study": loaded.name, "arms": arms}, indent=1), flush=True)
    else:
        counts = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
        print(f"{loaded.name}: {counts}.", flush=True)
    if slurm:
        check_cluster(profile, loaded)


@app.command(rich_help_panel=GROUP)
def plan(
    study: Annotated[Path, Argument(help="study file; its data may be missing")],
    device: Annotated[str | None, option("cpu (default for tiny models), h100 or h200 (default)")] = None,
    as_json: Json = False,
    power: Annotated[
        Path | None, option("seeds that a difference needs, from the spread in these results", metavar="RESULTS")
    ] = None,
) -> None:
    """Estimate what a study costs: jobs, tokens, device-hours, and what they are based on."""
    from .plan import estimate, plan_text, power_text

    if as_json and power:
        raise UserError("--json: --power prints a table alone; leave one of them out.")
    loaded = load_study(study)
    estimated = estimate(loaded, device or ("cpu" if loaded.model.start == "tiny" else "h200"))
    if as_json:
        print(json.dumps(estimated, indent=1, ensure_ascii=False))
    elif power:
        print(power_text(estimated, loaded, StudyResults(power)), end="")
    else:
        print(plan_text(estimated), end="")


@app.command(rich_help_panel=GROUP)
def methods(
    as_json: Json = False,
    config: Annotated[Path | None, option("study file whose own methods are listed, too")] = None,
) -> None:
    """List the methods."""
    groups = {
        "Published methods": [method(name) for name in method_names()],
        "To compare ratios: they differ in the ratio and its clip alone": [method(name) for name in comparison_names()],
    }
    if config:
        groups["Methods of the study"] = [*load_study(config).methods.values()]
    by_name = {method.name: method for listed in groups.values() for method in listed}
    if as_json:
        print(json.dumps({name: m.data() for name, m in by_name.items()}, indent=1, ensure_ascii=False))
        return
    width = max(map(len, by_name))
    for title, listed in groups.items():
        print(f"{title}:")
        for m in listed:
            print(f"  {m.name:{width}}  {m.summary}" + (f"  [{m.source}]" if m.source else ""))


# ---- stages ----------------------------------------------------------------------------------------------------------


def recorded(config: Path, results: Path | None) -> StudyResults:
    study = load_study(config)
    return StudyResults(results or Path("results") / study.name, study)


def require_problems(folder: StudyFolder) -> DataFolder:
    """The folder of a study's problems. UserError if `prepare` has not written them."""
    if not folder.data.train.exists():
        raise UserError(f"{folder.data.path}: has no problems yet; run `policygrain prepare` first.")
    return folder.data


@app.command(rich_help_panel=STAGES)
def prepare(
    config: Config = CONFIG,
    results: Results = None,
    only: Annotated[Literal["training", "benchmarks"] | None, option("write only these problems")] = None,
) -> None:
    """Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl, in the folder data."""
    from ..data.sources import check_golds, prepare_benchmarks, prepare_training
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


@app.command("start-model", rich_help_panel=STAGES)
def start_model_(config: Config = CONFIG, results: Results = None, seeds: Seeds = None) -> None:
    """Make a study's initial models, tiny or fine-tuned, after `prepare`.

    One that a study beside this one has made from the same settings, problems and seed is copied.
    """
    from ..model.device import claim_gpu
    from ..train.start_model import ensure_start_model

    read = recorded(config, results)
    data = require_problems(read.folder)
    claim_gpu()
    for seed in seeds or read.study.seeds[:1]:
        folder = read.folder.start(seed)
        beside = (StudyFolder(path).start(seed) for path in sorted(read.folder.path.parent.iterdir()))
        ensure_start_model(read.study, seed, data, folder, beside)
        write_record(folder.copy_of_record, start_model(folder))


@app.command(rich_help_panel=STAGES)
def train(
    config: Config = CONFIG,
    results: Results = None,
    arm: Annotated[str | None, option("method, or arm of the study (default: the study's first)")] = None,
    seeds: Seeds = None,
    run_dir: Annotated[Path | None, option("folder of the run (default: in the study's results)")] = None,
    time_limit: Annotated[
        float | None, option("save and exit with 75 before this (default: the SLURM job's)", metavar="MINUTES")
    ] = None,
) -> None:
    """Train runs, or resume them; finished runs are left as they are.

    Problems and initial models are those of the study's results, after `prepare` and `start-model`. With
    `training.trainer: trl`, all processes that torchrun or srun starts train each run together.
    """
    from ..model.device import claim_gpu
    from ..tracking import live
    from ..train.ranks import on_rank_0
    from ..train.stopping import Stop, deadline
    from ..trainers.launch import processes, read_slurm
    from ..trainers.run import train_run

    read = recorded(config, results)
    study, folder, chosen, seeds = read.study, read.folder, find_arm(read.study, arm), seeds or read.study.seeds[:1]
    if len(seeds) > 1 and run_dir:
        raise UserError("--run-dir: is the folder of one run; leave it out, or name one seed.")
    data, starts = require_problems(folder), {seed: start_of(read, seed) for seed in seeds}
    read_slurm()
    if chosen.training.trainer not in ("verl", "command"):  # their own processes take what is visible
        claim_gpu()
    with Stop(deadline(time_limit)) as stop, processes(chosen.training):
        for seed, start in starts.items():
            run = RunFolder(run_dir) if run_dir else folder.run(chosen.name, seed)
            tracked = nullcontext if run_dir else partial(live, study, folder, run)
            train_run(study, chosen, seed, run, str(start), data, stop, tracked)
            if study.evaluation.after_training and not run_dir and chosen.name in read.matrix.evaluated_arms:
                from ..evaluate.evaluation import evaluate_study

                on_rank_0(partial(evaluate_study, study, {f"{chosen.name}/seed{seed}": run.model}, data, folder))


def start_of(read: StudyResults, seed: int) -> Path:
    """The folder or name of the model that runs of a seed begin from. UserError if `start-model` has not made it."""
    if not read.study.model.is_made:
        return Path(read.study.model.start)
    start = read.folder.start(first := start_seed(read.study, seed))
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


@app.command(rich_help_panel=STAGES)
def evaluate(
    config: Config = CONFIG,
    results: Results = None,
    arms: Annotated[list[str] | None, option("arms; start: initial models (default: all)", "--arms", "--arm")] = None,
) -> None:
    """Evaluate a study's initial and final models in one engine; what this protocol has evaluated is kept."""
    from ..evaluate.evaluation import evaluate_study
    from ..model.device import claim_gpu

    read = recorded(config, results)
    study, folder, known = read.study, read.folder, [START, *read.matrix.evaluated_arms]
    for name in arms or ():
        if name not in known:
            raise UserError(f"--arms: the study evaluates no arm {name!r}.{did_you_mean(name, known)}")
    data, models = require_problems(folder), {arm: models_of(read, arm) for arm in arms or known}
    claim_gpu()
    keys = evaluate_study(study, {n: m for of in models.values() for n, m in of.items()}, data, folder)
    for arm, of in models.items():
        of_arm = EvaluatedArm(settings=settings(study, "evaluation"), models={name: keys[name] for name in of})
        write_record(folder.evaluated(arm), of_arm)


def models_of(read: StudyResults, arm: str) -> dict[str, Path]:
    """Name → folder, or name on a hub, of the models of an arm, or of the initial models."""
    if arm == START:
        return {f"{START}/seed{seed}": start_of(read, seed) for seed in start_seeds(read.study)}
    return {run.name: read.run_folder(run).model for run in read.matrix.evaluated if run.arm == arm}


@app.command(rich_help_panel=STAGES)
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


@app.command(rich_help_panel=STAGES)
def report(
    config: Config = CONFIG,
    results: Results = None,
    captions: Annotated[Path, option("folder of captions, NAME.rst")] = Path("workflow/report"),
    screen: Annotated[bool, option("check that nothing is missing, and print an overview instead", "--screen")] = False,
) -> None:
    """Write a study's report: one self-contained HTML page, report.html in the results.

    It has the figures, tables of accuracy and comparisons, the evaluation protocol, and where every number comes from.
    """
    from ..figures import report as made

    read = recorded(config, results)
    if screen:
        made.check_complete(read)
        print(made.screen(read))
    else:
        made.write_report(read, captions, read.folder.report)


@app.command(rich_help_panel=STAGES)
def track(config: Config = CONFIG, results: Results = None) -> None:
    """Copy a study's records to MLflow, except those that are there already."""
    from .. import tracking

    read = recorded(config, results)
    write_record(read.folder.tracking, tracking.track(read))


@app.command(rich_help_panel=STAGES)
def ui(
    config: Config = CONFIG,
    results: Results = None,
    port: Annotated[int, option("port of the server on this machine")] = 5000,
) -> None:
    """Print where a study's runs are in MLflow; a local store, without a tracking server, is served until Ctrl-C."""
    from .ui import serve

    read = recorded(config, results)
    serve(read.folder, read.study, port)
