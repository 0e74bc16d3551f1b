"""Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--done", type=Path, nargs="+", default=[], help="files to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Write the problems."""
    from ..doctor.gate import check_study
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder
    from ..results.reader import prepared_data
    from ..study import load_study
    from ..tasks.golds import check_golds
    from ..tasks.sources import prepare

    study, data = load_study(arguments.config), DataFolder(arguments.out)
    check_study(study)
    for done in arguments.done:
        begin(done, [])
    prepare(study, data)
    files = [data.train, data.validation, *(data.benchmark(b.name) for b in study.evaluation.benchmarks)]
    check_golds(files, study.grader)
    if prepared := prepared_data(data):
        for done in arguments.done:
            write_done(done, prepared.files)
