"""Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder")


def run(arguments: argparse.Namespace) -> None:
    """Write the problems."""
    from ..stages import prepare_study
    from ..study import load_study

    prepare_study(load_study(arguments.config), arguments.out)
