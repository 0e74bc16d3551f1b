"""Mirror a study's records into MLflow.

Metrics, figures and tables that are in MLflow already are not logged again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--results", type=Path, required=True, help="the study's results")
    parser.add_argument(
        "--done",
        type=Path,
        default=None,
        help="JSON file to write at the end: where everything is in MLflow (default: in the study's results)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Mirror the records."""
    from ..results.reader import StudyResults
    from ..results.schema import write_record
    from ..study import load_study
    from ..track.mirror import mirror

    results = StudyResults(arguments.results, load_study(arguments.config))
    write_record(arguments.done or results.folder.tracking, mirror(results))
