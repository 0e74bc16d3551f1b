"""Measure which clip bands clip what, on the rollouts of a run of your own.

How the ratios of each grain spread, what published bands clip, and the band that clips a wanted share of tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--rollouts",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON Lines or Parquet, a row per response: log_probs, old_log_probs, and reward and group, or advantage",
    )
    parser.add_argument(
        "--share", type=float, default=0.01, help="share of tokens that a band should clip (default: 0.01)"
    )
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw the distributions")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file of what was measured")


def run(arguments: argparse.Namespace) -> None:
    """Measure the rollouts, and print and write what was found."""
    import json

    from ..integrations import bands
    from ..integrations.rollout_files import read_rollouts

    rollouts = read_rollouts(arguments.rollouts)
    grains = bands.measure(rollouts, arguments.share)
    print(bands.table(grains, rollouts, arguments.share))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(bands.data(grains, rollouts, arguments.share), indent=1) + "\n")
    if arguments.figure is not None:
        bands.draw(rollouts, arguments.figure)
