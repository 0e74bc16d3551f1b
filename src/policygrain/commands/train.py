"""Train runs, or resume them; finished runs are left as they are.

Under torchrun or srun all processes train each run together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


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
        "--start-model", "--start", dest="start", help="start model (default: the study's; a tiny one is built)"
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder written by `prepare` (default: written into the run's folder)"
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
    from ..files import atomic_json
    from ..stages import train_run
    from ..study import load_study
    from ..train.launch import process_group
    from ..train.ranks import on_rank_0, ranks
    from ..train.stopping import Stop, deadline

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    if len(seeds) > 1 and "{seed}" not in arguments.run_dir:
        raise UserError("--run-dir: several seeds need a folder each; write {seed} where the seed belongs.")
    trained = {}
    with Stop(deadline(arguments.time_limit)) as stop, process_group():
        if len(seeds) > 1 and study.training.engine == "vllm" and ranks()[1] > 1:
            # A vLLM engine that is shut down destroys the process group, which the ranks need for the next seed.
            raise UserError("--seeds: several ranks that sample with vLLM train one seed per process.")
        for seed in seeds:
            run_dir, start = (
                text and text.replace("{seed}", str(seed)) for text in (arguments.run_dir, arguments.start)
            )
            trained[seed] = train_run(study, arguments.arm, seed, Path(run_dir), start, arguments.data, stop)
        if arguments.done:
            on_rank_0(lambda: atomic_json(arguments.done, trained))
