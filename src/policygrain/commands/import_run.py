"""Write a run that another engine, verl, trained into a study's results.

It was trained in a folder of `policygrain export`. Evaluation, figures and claims then treat it as a run of the study
that has ended.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("engine", choices=["verl"], help="the engine")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder that `policygrain export` wrote")
    parser.add_argument("--results", type=Path, required=True, metavar="RESULTS", help="folder of the study's results")
    parser.add_argument(
        "--log", type=Path, nargs="+", default=[], help="log of each attempt, in order (default: FOLDER/metrics*.jsonl)"
    )
    parser.add_argument(
        "--model", type=Path, help="final model, in Hugging Face's format (default: that of the last checkpoint)"
    )
    parser.add_argument("--hardware", default="", metavar="TEXT", help="what it was trained on, for the record")


def run(arguments: argparse.Namespace) -> None:
    """Import the run, and print its folder and what a reader should know."""
    from ..exchange.verl_import import import_run
    from ..results.layout import StudyFolder

    imported, notes = import_run(
        arguments.folder, StudyFolder(arguments.results), arguments.log, arguments.model, arguments.hardware
    )
    print("\n".join([str(imported.path), *(f"note: {note}." for note in notes)]))
