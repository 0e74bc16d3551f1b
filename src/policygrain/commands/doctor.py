"""Check this machine, or a SLURM cluster, for everything that a study needs.

Prints what to change; the exit code is 2 when something is wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--slurm", action="store_true", help="check a cluster, from its login node")
    parser.add_argument(
        "--profile",
        type=Path,
        default=Path("slurm/config.yaml"),
        help="Snakemake profile of the cluster (default: slurm/config.yaml)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Check the machine or the cluster."""
    from ..doctor import check_cluster, check_machine, print_findings

    results = Path("results")
    if arguments.slurm:
        print_findings(check_cluster(arguments.config, arguments.profile, results))
    else:
        print_findings(check_machine(arguments.config, results))
