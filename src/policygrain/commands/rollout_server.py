"""Sample rollouts for a run that is trained elsewhere, until it ends.

The run has `rollouts.where: servers`. Any number of servers may be started, on any machine that sees the run's folder,
and at any time.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run")


def run(arguments: argparse.Namespace) -> None:
    """Serve."""
    from ..results.layout import RunFolder
    from ..rollout.server import serve

    serve(RunFolder(arguments.run_dir).servers)
