"""Choose a clip band per ratio from the runs of a study like studies/bands.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the study's results, such as results/bands")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all candidates and the choice")


def run(arguments: argparse.Namespace) -> None:
    """Print every candidate with its area under the learning curve, and the chosen ones."""
    from ..analysis.bands import choose_bands
    from ..files import atomic_json
    from ..results.reader import StudyResults
    from ..text import columns

    found = choose_bands(StudyResults(arguments.results))
    rows = []
    for ratio, bands in found["candidates"].items():
        for band in bands:
            ends = {key: band[key] for key in ("low", "high")}
            by = "  ".join(f"{u}: {sum(v.values()) / len(v):.1f}" for u, v in band["areas"].items())
            mark = "chosen" if ends == found["chosen"][ratio] else ""
            rows.append([ratio, f"{band['low']:g} / {band['high']:g}", f"{band['mean']:.1f}", by, mark])
    header = ["ratio", "band", "area, points", "by updates per batch", ""]
    print("\n".join(columns(rows, header, "llrll")))
    if arguments.out:
        atomic_json(arguments.out, found)
