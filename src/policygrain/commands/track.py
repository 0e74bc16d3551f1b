"""Mirror a study's records into MLflow.

What is in MLflow already is not logged again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--results", type=Path, required=True, help="the study's results")
    parser.add_argument(
        "--follow",
        type=int,
        metavar="PID",
        help="log the steps of runs while they are trained, until the process PID, which must have started this, ends",
    )
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Mirror the records."""
    from ..results.done import begin, write_done
    from ..results.reader import StudyResults
    from ..results.schema import write_record
    from ..study import load_recorded_study
    from ..track.follow import follow
    from ..track.mirror import mirror

    results = StudyResults(arguments.results, load_recorded_study(arguments.config))
    if arguments.follow is not None:
        os.nice(10)  # lower priority than training
        follow(results.folder, results.study, arguments.follow)
        return
    if arguments.done:
        begin(arguments.done, [results.folder.tracking.name])
    write_record(results.folder.tracking, mirror(results))
    if arguments.done:
        write_done(arguments.done, {results.folder.tracking.name: results.fingerprints.tracking()})
