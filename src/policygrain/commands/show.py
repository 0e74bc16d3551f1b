"""Show evaluations: one model in detail, several side by side, or samples as a page.

Accuracies have 95% intervals over training seeds, or over problems where there is one seed; differences are paired.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="run, evaluation/, records.json, or a study's results",
    )
    parser.add_argument("--against", metavar="NAME", help="compare the others with this one (default: the first)")
    parser.add_argument("--benchmark", action="append", metavar="NAME", help="show only this one; may be repeated")
    parser.add_argument("--anyway", action="store_true", help="compare records of different protocols")
    parser.add_argument("--all", action="store_true", help="every benchmark with intervals, and the protocol")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--page", type=Path, metavar="OUT", help="write the samples of one or two runs as an HTML file")


def run(arguments: argparse.Namespace) -> None:
    """Print the evaluations, or write the page of samples."""
    from ..analysis import model_comparison as analysis
    from ..results.evaluated_models import check_same_protocol, find, select_benchmarks

    groups = find(arguments.paths)
    select_benchmarks(groups, arguments.benchmark)
    differing = check_same_protocol(groups, arguments.anyway)
    baseline = analysis.baseline(groups, arguments.against)
    if arguments.page:
        from ..views.samples import write_page

        print(write_page(groups, arguments.page))
    elif arguments.json:
        print(json.dumps(analysis.data(groups, baseline, differing), indent=1, ensure_ascii=False))
    else:
        from ..views.show import comparison, detail, overview

        side_by_side = comparison if arguments.all else overview
        print(detail(baseline) if len(groups) == 1 else side_by_side(groups, baseline, differing), end="")
