"""Print the records, seeds, commits and commands behind a number of a table."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="results/STUDY/tables/NAME.csv")
    parser.add_argument(
        "--cell", required=True, metavar="ROW,COLUMN", help="such as tepo,average; unique beginnings are enough"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the explanation of the cell."""
    from ..report.explain import explain

    print(explain(arguments.table, arguments.cell))
