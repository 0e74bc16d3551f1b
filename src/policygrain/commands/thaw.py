"""Unpack a frozen study, verify it, and redraw its figures and tables.

The new figures and tables are in `redrawn/`, beside those that were frozen.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("archive", type=Path, help="ZIP file")
    parser.add_argument("--out", type=Path, required=True, help="empty folder")
    parser.add_argument("--trust", action="store_true", help="unpack a study that names functions of its own, too")


def run(arguments: argparse.Namespace) -> None:
    """Unpack, verify and redraw."""
    from ..figures import TABLES
    from ..figures.catalogue import draw
    from ..report.freeze import thaw
    from ..results.reader import StudyResults

    manifest = thaw(arguments.archive, arguments.out, arguments.trust)
    results = StudyResults(arguments.out)
    for name in (*results.study.figures, *TABLES):
        draw(name, results, arguments.out / "redrawn" / name)
    print(f"{arguments.out}: {len(manifest.files)} files verified; new figures and tables are in its `redrawn/`.")
