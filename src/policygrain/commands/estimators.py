"""Measure gradient estimators on one start model, against the true gradient.

Bias, noise and usefulness of the update of each method, on the same batches (docs/estimators.md).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import add_start_options, add_study_option

if TYPE_CHECKING:
    from ..results.measurements import EstimatorsRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    add_start_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the records and print them."""
    import sys

    from ..instruments.estimators import ESTIMATORS
    from ..instruments.inputs import measure_starts
    from ..study import load_study

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    own = arguments.start, arguments.data, arguments.out, arguments.done
    for record in measure_starts(ESTIMATORS, study, seeds, *own):
        print("\n".join(table(record)), flush=True)
        for note in record.notes:
            print(f"note: {note}", file=sys.stderr)


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
