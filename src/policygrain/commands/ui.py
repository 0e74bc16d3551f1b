"""Serve MLflow in the browser, and print where a study's charts are.

With a tracking server (`tracking.uri`, MLFLOW_TRACKING_URI) only the addresses are printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--results", type=Path, help="the study's results (default: results/NAME)")
    parser.add_argument("--port", type=int, default=5000, help="port of the server on this machine")


def run(arguments: argparse.Namespace) -> None:
    """Print the addresses; serve a local store until Ctrl-C, SIGTERM or SIGHUP."""
    from ..results.layout import StudyFolder
    from ..study import load_recorded_study
    from ..track.ui import serve

    study = load_recorded_study(arguments.config)
    serve(StudyFolder(arguments.results or Path("results") / study.name), study, arguments.port)
