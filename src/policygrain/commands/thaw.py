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
    from ..errors import NoResults
    from ..figures import TABLES
    from ..figures.catalogue import draw
    from ..report.freeze import thaw
    from ..results.reader import StudyResults

    notes = []

    def redraw(folder: Path) -> None:
        results = StudyResults(folder)
        for name in (*results.study.figures, *TABLES):
            try:
                draw(name, results, folder / "redrawn" / name)
            except NoResults as error:  # the study was frozen before this stage, or has none
                notes.append(f"note: {name} is not redrawn: {str(error).replace(str(folder), str(arguments.out))}")

    manifest = thaw(arguments.archive, arguments.out, arguments.trust, redraw)
    print(f"{arguments.out}: {len(manifest.files)} files verified; new figures and tables are in its `redrawn/`.")
    for note in notes:
        print(note)
