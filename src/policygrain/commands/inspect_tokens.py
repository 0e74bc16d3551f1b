"""Write a page that shows what a training step did to each token of samples.

Tokens are coloured by ratio, advantage, change of probability or change of entropy. For an
imported run the page shows its rollouts.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--step", type=int, default=None, help="step (default: the last whose tokens were kept)")
    parser.add_argument("--out", type=Path, default=None, help="HTML file (default: in the run's folder)")


def run(arguments: argparse.Namespace) -> None:
    """Write the page and print its path."""
    from ..results.layout import RunFolder
    from ..views import samples, tokens

    folder = RunFolder(arguments.run_dir)
    imported = folder.rollout_steps() and not folder.token_steps()
    write = samples.write_rollouts if imported else tokens.write_page
    print(write(folder, arguments.step, arguments.out))
