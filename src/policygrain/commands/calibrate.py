"""Choose clip bands and learning rate on validation problems."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--work", type=Path, required=True, help="folder for pilot runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of measurements and choices")


def run(arguments: argparse.Namespace) -> None:
    """Train the pilot runs and write what was measured and chosen."""
    from ..study import load_study
    from ..train.calibration import calibrate

    calibrate(load_study(arguments.config), arguments.work, arguments.out)
