"""Choose clip bands: from the rollouts of a run of your own, or for a study.

With --rollouts: how the ratios of each grain spread, what published bands clip, and the band that clips a wanted share.
Without: learning rate and matched bands of a study of tiny models, by pilot runs on validation problems.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--rollouts",
        type=Path,
        metavar="FILE",
        help="JSON Lines or Parquet, a row per response: log_probs, old_log_probs, and reward and group, or advantage",
    )
    parser.add_argument(
        "--share", type=float, default=0.01, help="share of tokens that a band should clip (default: 0.01)"
    )
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw the distributions, with --rollouts")
    parser.add_argument("--out", type=Path, help="JSON file of measurements and choices (required without --rollouts)")
    add_study_option(parser)
    parser.add_argument("--work", type=Path, help="folder for pilot runs (required without --rollouts)")


def run(arguments: argparse.Namespace) -> None:
    """Measure the rollouts and print what was found; or train the pilot runs and write what was chosen."""
    from ..errors import UserError

    if arguments.rollouts is not None:
        _from_rollouts(arguments)
        return
    for option in ("work", "out"):
        if getattr(arguments, option) is None:
            raise UserError(f"--{option}: needed to calibrate a study by pilot runs; or give --rollouts FILE.")
    from ..study import load_study
    from ..train.calibration import calibrate

    calibrate(load_study(arguments.config), arguments.work, arguments.out)


def _from_rollouts(arguments: argparse.Namespace) -> None:
    import json

    from ..integrations import bands
    from ..integrations.rollouts import read_rollouts

    rollouts = read_rollouts(arguments.rollouts)
    grains = bands.measure(rollouts, arguments.share)
    print(bands.table(grains, rollouts, arguments.share))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(bands.data(grains, rollouts, arguments.share), indent=1) + "\n")
    if arguments.figure is not None:
        bands.draw(rollouts, arguments.figure)
