"""Draw one figure, or write one table, from a study's records.

A figure is written as PDF, SVG and PNG, a table as CSV and Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("name", help="figure or table; see `figures` in the study file")
    parser.add_argument("--results", type=Path, required=True, help="the study's results")
    parser.add_argument("--out", type=Path, default=None, help="file without suffix (default: where the study has it)")
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Draw the figure or write the table."""
    from ..figures.catalogue import draw
    from ..results.done import begin, write_done
    from ..results.reader import StudyResults
    from ..study import load_recorded_study

    results = StudyResults(arguments.results, load_recorded_study(arguments.config))
    if arguments.done:
        begin(arguments.done, [arguments.name])
    draw(arguments.name, results, arguments.out)
    if arguments.done:
        write_done(arguments.done, {arguments.name: results.fingerprints.figures()})
