"""Measure gradient estimators on one start model, against the true gradient.

Bias, noise and usefulness of the update of each method, on the same batches (docs/estimators.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import add_study_option

if TYPE_CHECKING:
    from ..results.measured import EstimatorsRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("--start", required=True, help="start model: a folder, or a Hugging Face name")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder written by `prepare` (default: prepared and removed afterwards)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the start model, and of sampling (default: the study's first)"
    )
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the record and print it."""
    import sys

    from .. import digests
    from ..errors import UserError
    from ..instruments.estimators import MISSING, measure_estimators
    from ..instruments.inputs import prepared
    from ..results.done import begin, write_done
    from ..study import load_study
    from ..study.checks import check_instruments

    study = load_study(arguments.config)
    if study.estimators is None:
        raise UserError(MISSING)
    check_instruments(study)
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    result = f"estimators/seed{seed}"
    if arguments.done:
        begin(arguments.done, [result])
    with prepared(study, arguments.data, arguments.out) as data:
        record = measure_estimators(study, seed, arguments.start, data, arguments.out)
    print("\n".join(table(record)))
    for note in record.notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.done:
        write_done(arguments.done, {result: digests.of_file(arguments.out)})


def table(record: EstimatorsRecord) -> list[str]:
    """The record as lines of a table: values with the half-width of their 95% interval."""
    from ..text import columns

    def shown(value: tuple[float, float, float], digits: int = 3) -> str:
        return f"{value[0]:.{digits}f} ±{(value[2] - value[1]) / 2:.{digits}f}"

    header = ["steps", "updates", "estimator", "bias cosine", "length", "SNR", "cosine", "minus reference"]
    header += ["Adam cosine", "entropy", "norm", "clipped", "ratio variance", "samples", "penalty"]
    rows = [
        [
            f"{row.steps}",
            f"{row.updates}",
            row.estimator,
            shown(row.bias_cosine, 2),
            shown(row.length, 2),
            shown(row.snr, 4),
            shown(row.cosine),
            "reference" if row.estimator == record.reference else shown(row.cosine_difference),
            shown(row.adam_cosine),
            shown(row.entropy_direction),
            shown(row.norm, 2),
            f"{row.clip_fraction:.2%}",
            f"{row.ratio_variance:.3g}",
            f"{row.effective_sample_share:.0%}",
            f"{row.penalty_share:.0%}",
        ]
        for row in record.rows
    ]
    found = ", ".join(f"{where} {accuracy:.1%}" for where, accuracy in record.accuracy.items())
    sizes = f"{record.batches} batches of {record.responses_per_batch} responses"
    return [
        *columns(rows, header, "rrlr"),
        f"accuracy at steps/updates: {found}; {sizes}, true gradient of {record.true_responses}; "
        f"± 95% within this policy; {record.seconds:.0f} s",
    ]
