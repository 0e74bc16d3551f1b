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
    parser.add_argument(
        "--seeds", "--seed", type=int, nargs="+", metavar="SEED", help="seeds (default: the study's first)"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    parser.add_argument("--out", required=True, help="folder; {seed} stands for the seed")
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Build, fine-tune and save the models, one after the other."""
    from ..errors import UserError
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder, StartFolder
    from ..results.reader import start_model
    from ..study import load_study
    from ..train.start_model import ensure_start_model

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    if len(seeds) > 1 and "{seed}" not in arguments.out:
        raise UserError("--out: several seeds need a folder each; write {seed} where the seed belongs.")
    if arguments.done:
        begin(arguments.done, [f"seed{seed}" for seed in seeds])
    built = {}
    for seed in seeds:
        out = StartFolder(Path(arguments.out.replace("{seed}", str(seed))))
        ensure_start_model(study, seed, DataFolder(arguments.data), out)
        built[f"seed{seed}"] = start_model(out).digest
    if arguments.done:
        write_done(arguments.done, built)
