"""Compare two studies: accuracies with intervals and corrected p-values, and which claims replicate."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("studies", nargs=2, type=Path, metavar="RESULTS", help="results/STUDY of each study")
    parser.add_argument("--out", type=Path, default=None, help="CSV file for all numbers of accuracies")


def run(arguments: argparse.Namespace) -> None:
    """Print the comparison, and write all numbers where asked to."""
    from ..analysis.studies import compare_studies
    from ..files import atomic_text

    frame, text = compare_studies(*arguments.studies)
    if arguments.out:
        atomic_text(arguments.out, frame.to_csv(index=False))
    print(text)
