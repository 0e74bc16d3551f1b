"""Print the claims of the papers, and what a study's records say about them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..analysis.claims import ClaimResult
    from ..analysis.controls import Control
    from ..results.reader import StudyResults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "results", type=Path, metavar="RESULTS", help="a study's results, such as results/laptop, or its study file"
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="one verdict per claim and one sentence per regime and per own method",
    )
    parser.add_argument(
        "--complete", action="store_true", help="an error if a result of the study is missing; the report's place"
    )
    parser.add_argument("--json", action="store_true", help="everything, as JSON")


def _brief(results: StudyResults, decided: list[ClaimResult], judged: list[Control]) -> list[str]:
    """Paragraphs: a failed control, what the study compares, the claims with records, its own methods."""
    from ..analysis.claim_text import verdicts_text
    from ..analysis.contrasts import contrasts, sentences
    from ..analysis.controls import controls_warning
    from ..figures.labels import labels

    found, label = contrasts(results), labels(results.study)
    regimes, own = ([c for c in found if c.pair.whole == whole] for whole in (False, True))
    tested = [result for result in decided if result.findings]
    paragraphs = [
        controls_warning(judged),
        "\n".join(sentences(results, regimes, label)),
        verdicts_text(tested) if tested else "",
        "\n".join(sentences(results, own, label)),
    ]
    return [text for text in paragraphs if text]


def run(arguments: argparse.Namespace) -> None:
    """Print every claim with its verdict; if a control failed, that comes first."""
    from ..analysis.claim_text import claims_data, claims_text
    from ..analysis.claims import decide_study
    from ..analysis.controls import controls
    from ..results.reader import StudyResults
    from ..study import load_recorded_study

    path = arguments.results
    if path.suffix in (".yaml", ".yml"):
        path = Path("results") / load_recorded_study(path).name
    results = StudyResults(path)
    if arguments.complete:
        from ..report.complete import check_complete

        check_complete(results)
    decided, judged = decide_study(results), controls(results)
    if arguments.json:
        print(json.dumps(claims_data(decided, judged), indent=1, ensure_ascii=False))
    elif arguments.brief:
        print("\n\n".join(_brief(results, decided, judged)))
    else:
        print(claims_text(decided, judged))
    if arguments.complete and not arguments.json:
        print(f"\nThe report is in {results.folder.report}.")
