"""Train runs, or resume them; finished runs are left as they are.

Under torchrun or srun all processes train each run together.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import add_study_option

if TYPE_CHECKING:
    from ..study import Study
    from ..study.runs import Arm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--run-dir", required=True, help="folder of the run; {seed} stands for the seed")
    parser.add_argument("--arm", default=None, help="method, or arm of the study (default: the study's first)")
    parser.add_argument(
        "--seeds", "--seed", type=int, nargs="+", metavar="SEED", help="seeds (default: the study's first)"
    )
    # torchrun reads `--start`, wherever it stands, as the beginning of an option of its own.
    parser.add_argument(
        "--start-model",
        "--start",
        dest="start",
        help="start model (default: the study's; a tiny one is built); {seed} stands for the seed of the start model",
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder written by `prepare` (default: written into the run's folder)"
    )
    parser.add_argument(
        "--evaluate", type=Path, metavar="RESULTS", help="evaluate each final model, too; folder of the study's results"
    )
    parser.add_argument("--done", type=Path, default=None, help="file to write when all runs are trained")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help="save and exit with 75 before this time is over (default: what is left of the SLURM job)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Train one run per seed, one after the other."""
    from ..errors import UserError
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder, RunFolder, StudyFolder
    from ..study import load_study
    from ..study.fingerprint import start_seed
    from ..train.launch import process_group
    from ..train.ranks import on_rank_0, ranks
    from ..train.run import train_run
    from ..train.stopping import Stop, deadline

    study = load_study(arguments.config)
    arm = find_arm(study, arguments.arm)
    data = arguments.data and DataFolder(arguments.data)
    seeds = arguments.seeds or study.seeds[:1]
    if arguments.evaluate is not None and data is None:
        raise UserError("--evaluate: needs --data, the folder that contains the benchmarks.")
    if len(seeds) > 1 and "{seed}" not in arguments.run_dir:
        raise UserError("--run-dir: several seeds need a folder each; write {seed} where the seed belongs.")
    trained = {}
    with Stop(deadline(arguments.time_limit)) as stop, process_group():
        if len(seeds) > 1 and study.training.engine == "vllm" and ranks()[1] > 1:
            # A vLLM engine that is shut down destroys the process group, which the ranks need for the next seed.
            raise UserError("--seeds: several ranks that sample with vLLM train one seed per process.")
        if arguments.done:
            on_rank_0(lambda: begin(arguments.done, [f"{arm.name}/seed{seed}" for seed in seeds]))
        for seed in seeds:
            run_dir = arguments.run_dir.replace("{seed}", str(seed))
            start = arguments.start and arguments.start.replace("{seed}", str(start_seed(study, seed)))
            key = train_run(study, arm, seed, RunFolder(Path(run_dir)), start, data, stop)
            name = f"{arm.name}/seed{seed}"
            trained[name] = key
            if arguments.evaluate is not None and data is not None:
                from ..evaluate.run import evaluate

                results, model = StudyFolder(arguments.evaluate), {name: RunFolder(Path(run_dir)).model}
                on_rank_0(lambda results=results, model=model: evaluate(study, model, data, results))  # type: ignore[misc]
        if arguments.done:
            on_rank_0(lambda: write_done(arguments.done, trained))


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
