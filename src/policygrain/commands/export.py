"""Write an arm of a study as a run of another engine, verl.

The folder has verl's configuration, the problems and a reward function; the command that starts it is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("engine", choices=["verl"], help="the engine")
    add_study_option(parser)
    parser.add_argument("--arm", help="arm of the study (default: its first)")
    parser.add_argument("--seed", type=int, help="seed (default: the study's first)")
    parser.add_argument("--data", type=Path, help="folder written by `prepare` (default: prepared in OUT)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder to write")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of a node")


def run(arguments: argparse.Namespace) -> None:
    """Write the folder."""
    from ..exchange import verl_export
    from ..results.layout import DataFolder
    from ..study import load_study
    from .train import find_arm

    study = load_study(arguments.config)
    arm = find_arm(study, arguments.arm)
    data = DataFolder(arguments.data) if arguments.data else None
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    said = verl_export.export(study, arm, seed, data, arguments.out, arguments.gpus)
    print(verl_export.describe(arguments.out, said))
