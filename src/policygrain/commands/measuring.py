"""Stages that measure: gradient estimators, rounds of updates, and models on benchmarks."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from .declare import CONFIG, DATA, DONE, RESULTS, SEEDS, command, option, path

START_OPTIONS = (
    CONFIG,
    option("--start", "initial model: a folder, or a Hugging Face name; {seed} stands for the seed", required=True),
    path("--out", "JSON file; {seed} stands for the seed", required=True),
    path("--data", "folder written by `prepare` (default: prepared and removed afterwards)"),
    SEEDS,
    DONE,
)


def _measure(arguments: Namespace, instrument: Any, table: Callable[[Any], list[str]]) -> None:
    """Measure the initial models; write and print their records."""
    from ..instruments.inputs import measure_starts
    from ..study import load_study

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    files = arguments.start, arguments.data, arguments.out, arguments.done
    for record in measure_starts(instrument, study, seeds, *files):
        print("\n".join(table(record)), flush=True)
        for note in getattr(record, "notes", ()):
            print(f"note: {note}", file=sys.stderr)


@command(*START_OPTIONS)
def estimators(arguments: Namespace) -> None:
    """Measure gradient estimators on one initial model, against the true gradient.

    Bias, noise and usefulness of the update of each method, on the same batches (docs/estimators.md).
    """
    from ..instruments.estimators import ESTIMATORS
    from ..instruments.printed import estimators

    _measure(arguments, ESTIMATORS, estimators)


@command(*START_OPTIONS)
def rounds(arguments: Namespace) -> None:
    """Measure one round of updates by each method, from the same policy and rollouts.

    The policy is validated with the same sampling seeds after each method's updates (docs/rounds.md).
    """
    from ..instruments.printed import rounds
    from ..instruments.rounds import ROUNDS

    _measure(arguments, ROUNDS, rounds)


@command(
    CONFIG,
    DATA,
    RESULTS,
    DONE,
    option("--part", "sample one of N parts of the responses, I from 0 to N − 1, and grade nothing", metavar="I/N"),
    option("--engines", "processes that sample (default: one per GPU of this machine)", type=int, metavar="N"),
    option("models", "models to evaluate", nargs="+", metavar="NAME=MODEL_DIR"),
)
def evaluate(arguments: Namespace) -> None:
    """Evaluate models on the study's benchmarks.

    Models that were evaluated under the same protocol before are not sampled again. Sampling takes one process per
    engine; then the responses are graded and the records written.
    """
    from ..evaluate.evaluation import evaluate
    from ..evaluate.parallel import gpus, sample_in_parallel
    from ..results.done import begin, write_done
    from ..results.layout import DataFolder, StudyFolder
    from ..study import load_study

    models = dict(map(named_model, arguments.models))
    part = part_of(arguments.part)
    study, engines = load_study(arguments.config), arguments.engines or len(gpus()) or 1
    if arguments.done and part is None:
        begin(arguments.done, models)
    if engines > 1:
        flags = {"--config": arguments.config, "--data": arguments.data, "--results": arguments.results}
        options = [word for flag, path in flags.items() for word in (flag, str(path))]
        sample_in_parallel(["evaluate", *options, *arguments.models], part or (0, 1), engines)
    if engines == 1 or part is None:
        keys = evaluate(study, models, DataFolder(arguments.data), StudyFolder(arguments.results), part)
    if arguments.done:
        write_done(arguments.done, keys if part is None else {})


def named_model(text: str) -> tuple[str, Path]:
    """`NAME=MODEL_DIR` → (NAME, MODEL_DIR).

    A run's name, `ARM/seedS`, may contain settings with `=`, and so may its folder.
    """
    match = re.fullmatch(r"(.*?/seed\d+|[^=]+)=(.+)", text)
    if match is None:
        raise UserError(f"evaluate: {text!r} is not NAME=MODEL_DIR.")
    return match[1], Path(match[2])


def part_of(text: str | None) -> tuple[int, int] | None:
    """`2/8` → (2, 8)."""
    if text is None:
        return None
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and int(number) < int(parts)):
        raise UserError(f"--part: {text!r} is not I/N with I from 0 to N − 1.")
    return int(number), int(parts)
