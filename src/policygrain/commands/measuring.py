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
    from ..instruments.instrument import measure_starts
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
    from ..instruments.estimators import Estimation, text

    _measure(arguments, Estimation, text)


@command(*START_OPTIONS)
def rounds(arguments: Namespace) -> None:
    """Measure one round of updates by each method, from the same policy and rollouts.

    The policy is validated with the same sampling seeds after each method's updates (docs/estimators.md).
    """
    from ..instruments.rounds import Round, text

    _measure(arguments, Round, text)


@command(
    CONFIG,
    DATA,
    RESULTS,
    DONE,
    option("models", "models to evaluate", nargs="+", metavar="NAME=MODEL_DIR"),
)
def evaluate(arguments: Namespace) -> None:
    """Evaluate models on the study's benchmarks.

    Models that were evaluated under the same protocol before are not sampled again.
    """
    from ..evaluate.evaluation import evaluate
    from ..results.job_state import begin, write_done
    from ..results.layout import DataFolder, StudyFolder
    from ..study import load_study

    models = dict(map(named_model, arguments.models))
    if arguments.done:
        begin(arguments.done, models)
    study, data = load_study(arguments.config), DataFolder(arguments.data)
    keys = evaluate(study, models, data, StudyFolder(arguments.results))
    if arguments.done:
        write_done(arguments.done, keys)


def named_model(text: str) -> tuple[str, Path]:
    """`NAME=MODEL_DIR` → (NAME, MODEL_DIR).

    A run's name, `ARM/seedS`, may contain settings with `=`, and so may its folder.
    """
    match = re.fullmatch(r"(.*?/seed\d+|[^=]+)=(.+)", text)
    if match is None:
        raise UserError(f"evaluate: {text!r} is not NAME=MODEL_DIR.")
    return match[1], Path(match[2])
