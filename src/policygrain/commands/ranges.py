"""Choose a clip range per ratio from the runs of a study of candidates.

studies/phase-ranges.yaml is such a study.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "results", type=Path, metavar="RESULTS", help="the study's results, such as results/phase-ranges"
    )
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all candidates and the choice")


def run(arguments: argparse.Namespace) -> None:
    """Print every candidate with its area under the learning curve, and the chosen ones."""
    from ..analysis.clip_ranges import choose_ranges
    from ..files import atomic_json
    from ..results.reader import StudyResults
    from ..text import columns

    found = choose_ranges(StudyResults(arguments.results))
    rows = []
    for ratio, ranges in found["candidates"].items():
        for one in ranges:
            ends = {key: one[key] for key in ("low", "high")}
            means = [f"{sum(v.values()) / len(v):.1f}" for v in one["areas"].values()]
            mark = "chosen" if ends == found["chosen"][ratio] else ""
            rows.append([ratio, f"{one['low']:g} / {one['high']:g}", f"{one['mean']:.1f}", *means, mark])
    regimes = list(next(iter(found["candidates"].values()))[0]["areas"])
    print("\n".join(columns(rows, ["ratio", "range", "mean area", *regimes, ""], "llr" + "r" * len(regimes) + "l")))
    if found["extend"]:
        print(f"\nThe best range is at an end of the list of: {', '.join(found['extend'])}. Add candidates beyond it.")
    if arguments.out:
        atomic_json(arguments.out, found)
