"""Print the claims of the papers, and what a study's records say about them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "results", type=Path, metavar="RESULTS", help="a study's results, such as results/laptop, or its study file"
    )
    parser.add_argument("--brief", action="store_true", help="one verdict per claim, and the findings, a sentence each")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument(
        "--design",
        choices=("fixed", "sequential"),
        default=None,
        help="sequential: tests that stay valid while seeds are added; fixed: for a planned number of seeds (default: "
        "sequential for studies with that section, else fixed)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print every claim with its verdict; if a control failed, that comes first."""
    from ..analysis.claim_text import claims_data, claims_text, verdicts_text
    from ..analysis.claims import decide_study
    from ..analysis.controls import controls
    from ..analysis.findings import answers_text, findings
    from ..results.reader import StudyResults
    from ..study import load_recorded_study

    path = arguments.results
    if path.suffix in (".yaml", ".yml"):
        path = Path("results") / load_recorded_study(path).name
    results = StudyResults(path)
    decided, judged = decide_study(results, arguments.design), controls(results)
    if arguments.json:
        print(json.dumps(claims_data(decided, judged), indent=1, ensure_ascii=False))
    elif arguments.brief:
        print(f"{verdicts_text(decided, judged)}\n\n{answers_text(findings(results))}")
    else:
        print(claims_text(decided, judged))
