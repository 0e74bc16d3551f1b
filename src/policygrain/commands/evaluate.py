"""Evaluate models on the study's benchmarks.

Models that were evaluated under the same protocol before are not sampled again.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..errors import UserError
from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    parser.add_argument("--results", type=Path, required=True, help="results folder that the evaluations belong to")
    parser.add_argument("--done", type=Path, default=None, help="file to write when all models are evaluated")
    parser.add_argument(
        "--part", metavar="I/N", help="sample one of N parts of the responses, I from 0 to N − 1, and grade nothing"
    )
    parser.add_argument(
        "--engines", type=int, metavar="N", help="processes that sample (default: one per GPU of this machine)"
    )
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL_DIR", help="models to evaluate")


def run(arguments: argparse.Namespace) -> None:
    """Sample in one process per engine, then grade and write the records."""
    from ..evaluate.parallel import gpus, sample_in_parallel
    from ..evaluate.run import evaluate
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder, StudyFolder
    from ..study import load_study

    models = dict(map(named_model, arguments.models))
    part = part_of(arguments.part)
    study, engines = load_study(arguments.config), arguments.engines or len(gpus()) or 1
    if arguments.done and part is None:
        begin(arguments.done, models)
    if engines > 1:
        given = {"--config": arguments.config, "--data": arguments.data, "--results": arguments.results}
        options = [word for option, path in given.items() for word in (option, str(path))]
        sample_in_parallel(["evaluate", *options, *arguments.models], part or (0, 1), engines)
    if engines == 1 or part is None:
        keys = evaluate(study, models, DataFolder(arguments.data), StudyFolder(arguments.results), part)
    if arguments.done:
        write_done(arguments.done, keys if part is None else {})


def named_model(text: str) -> tuple[str, Path]:
    """`NAME=MODEL_DIR` → (NAME, MODEL_DIR).

    A run's name, `ARM/seedS`, may contain settings with `=`, and so may its folder.
    """
    found = re.fullmatch(r"(.*?/seed\d+|[^=]+)=(.+)", text)
    if found is None:
        raise UserError(f"evaluate: {text!r} is not NAME=MODEL_DIR.")
    return found[1], Path(found[2])


def part_of(text: str | None) -> tuple[int, int] | None:
    """`2/8` → (2, 8)."""
    if text is None:
        return None
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and int(number) < int(parts)):
        raise UserError(f"--part: {text!r} is not I/N with I from 0 to N − 1.")
    return int(number), int(parts)
