"""Build a study's tiny start model.

It is trained by supervised fine-tuning and saved with its tokenizer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--seed", type=int, default=None, help="seed (default: the study's first)")
    parser.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Build, fine-tune and save the model."""
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder, StartFolder
    from ..results.reader import start_model
    from ..study import load_study
    from ..train.start_model import ensure_start_model

    study, out = load_study(arguments.config), StartFolder(arguments.out)
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    if arguments.done:
        begin(arguments.done, [f"seed{seed}"])
    ensure_start_model(study, seed, DataFolder(arguments.data), out)
    if arguments.done:
        write_done(arguments.done, {f"seed{seed}": start_model(out).digest})
