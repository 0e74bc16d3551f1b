"""Measure the spread of ratios and the noise of gradients on one batch, for every ratio.

The batch is measured after several numbers of off-policy updates; no model is saved.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--seed", type=int, required=True, help="seed of the batch")
    parser.add_argument("--start", required=True, help="model that samples the batch")
    parser.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Sample the batch, measure it and write the measurements."""
    from .. import digests
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder
    from ..study import load_study
    from ..train.probe import probe

    data = DataFolder(arguments.data)
    result = f"seed{arguments.seed}"
    if arguments.done:
        begin(arguments.done, [result])
    probe(load_study(arguments.config), arguments.seed, arguments.start, data, arguments.out)
    if arguments.done:
        write_done(arguments.done, {result: digests.of_file(arguments.out)})
