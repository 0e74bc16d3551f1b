"""Write a study's report: one self-contained HTML page.

It has figures, tables, claims, the evaluation protocol and where every number comes from.
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
        "--captions",
        type=Path,
        default=Path("workflow/report"),
        help="folder of captions, NAME.rst (default: workflow/report)",
    )
    parser.add_argument("--out", type=Path, required=True, help="HTML file")
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Write the report."""
    from ..report import write_report
    from ..results.done import begin, write_done
    from ..results.reader import StudyResults
    from ..study import load_recorded_study

    results = StudyResults(arguments.results, load_recorded_study(arguments.config))
    if arguments.done:
        begin(arguments.done, [arguments.out.name])
    write_report(results, arguments.captions, arguments.out)
    if arguments.done:
        write_done(arguments.done, {arguments.out.name: results.fingerprints.tracking()})
