"""Pack a study's records, with checksums, into one archive.

The archive holds everything that figures and tables are drawn from; `policygrain thaw` redraws them.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("results", type=Path, help="results/STUDY")
    parser.add_argument("--out", type=Path, required=True, help="ZIP file")
    parser.add_argument(
        "--small",
        action="store_true",
        help="without problems, responses, views of tokens and figures, which `thaw` draws again",
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the archive."""
    from ..report.freeze import freeze

    manifest = freeze(arguments.results, arguments.out, arguments.small)
    print(f"{arguments.out}: {len(manifest.files)} files of {manifest.study}.")
