"""Pack a study's records, with checksums, into one archive.

The archive holds everything that figures and tables are drawn from; `policygrain thaw` redraws them.
"""

from __future__ import annotations

import argparse
import sys
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

    parser.add_argument(
        "--published",
        action="store_true",
        help="refuse records that were not made at commits of this repository with a clean tree, for docs/records",
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the archive."""
    from ..report.commits import broken, check_commits, made_at
    from ..report.freeze import freeze
    from ..results.reader import StudyResults

    results = StudyResults(arguments.results)
    if arguments.published:
        print(f"{arguments.results}: {check_commits(results)}.")
    else:
        for reason in broken(made_at(results)):
            print(f"policygrain: note: {reason}.", file=sys.stderr)
    manifest = freeze(arguments.results, arguments.out, arguments.small)
    print(f"{arguments.out}: {len(manifest.files)} files of {manifest.study}.")
