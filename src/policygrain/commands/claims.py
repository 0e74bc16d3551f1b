"""Print the claims of the papers, and what a study's records say about them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a study's results, such as results/laptop")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument(
        "--design",
        choices=("fixed", "sequential"),
        default="fixed",
        help="sequential: tests that stay valid while seeds are added (default: fixed, for a planned number of seeds)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print every claim with its verdict."""
    from ..analysis.claim_text import claims_data, claims_text
    from ..analysis.claims import compare, decide_claims, load_claims
    from ..results.reader import StudyResults

    results = StudyResults(arguments.results)
    decided = decide_claims(load_claims(), lambda c: compare(results, c), arguments.design)
    if arguments.json:
        print(json.dumps(claims_data(decided), indent=1, ensure_ascii=False))
    else:
        print(claims_text(decided))
