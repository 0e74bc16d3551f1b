"""The commands of the command line, by what they are for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

Command = Callable[[str, Callable[[argparse.Namespace], None], str], argparse.ArgumentParser]


def study(added: argparse.ArgumentParser) -> None:
    """The option that names a study file."""
    added.add_argument("--config", type=Path, default=Path("config.yaml"), help="study file (default: config.yaml)")
