"""Interim analysis of a study: which claims are decided, and which arms get more seeds."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a study's results, such as results/laptop")
    parser.add_argument("--number", type=int, required=True, help="rounds of added seeds so far")
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Write the record of the analysis; records of later analyses are removed, since they follow from this one."""
    from .. import digests
    from ..analysis.interim import interim
    from ..errors import UserError
    from ..results.done import begin, write_done
    from ..results.layout import StudyFolder
    from ..results.reader import StudyResults
    from ..results.schema import write_record

    folder, number = StudyFolder(arguments.results), arguments.number
    if number < 0 or (number and not folder.interim(number - 1).exists()):
        raise UserError(f"--number: {number}; the interim analyses before it have not been made.")
    result = f"interim/{number}"
    if arguments.done:
        begin(arguments.done, [result])
    later = number
    while (path := folder.interim(later)).exists():
        path.unlink()
        later += 1
    record = interim(StudyResults(arguments.results), number)
    write_record(folder.interim(number), record)
    print(record.reason)
    if arguments.done:
        write_done(arguments.done, {result: digests.of_file(folder.interim(number))})
