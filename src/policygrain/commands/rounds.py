"""Measure one round of updates by each method, from the same policy and rollouts.

The policy is validated with the same sampling seeds after each method's updates (docs/rounds.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import add_study_option

if TYPE_CHECKING:
    from ..results.measured import RoundsRecord


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
    from .. import digests
    from ..errors import UserError
    from ..instruments.inputs import prepared
    from ..instruments.rounds import MISSING, measure_rounds
    from ..results.done import begin, write_done
    from ..study import load_study
    from ..study.checks import check_instruments

    study = load_study(arguments.config)
    if study.rounds is None:
        raise UserError(MISSING)
    check_instruments(study)
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    result = f"rounds/seed{seed}"
    if arguments.done:
        begin(arguments.done, [result])
    with prepared(study, arguments.data, arguments.out) as data:
        record = measure_rounds(study, seed, arguments.start, data, arguments.out)
    print("\n".join(table(record)))
    if arguments.done:
        write_done(arguments.done, {result: digests.of_file(arguments.out)})


def table(record: RoundsRecord) -> list[str]:
    """The record as lines of a table: rewards, and the mean difference to the reference over pools and its interval."""
    from statistics import mean

    from ..instruments.rounds import differences
    from ..text import columns

    lines = []
    for steps, before in record.before.items():
        own = [row for row in record.rows if row.steps == int(steps)]
        last = max((row.updates for row in own), default=0)
        rows = []
        for name, found in differences(record, int(steps)).items():
            ends = [row for row in own if row.method == name and row.updates == last]
            shown = [f"{100 * value:.1f}" for value in found.rewards.values()]
            difference = "reference" if name == record.reference else f"{100 * found.difference:+.1f}"
            if found.interval is not None and name != record.reference:
                difference += f" [{100 * found.interval[0]:+.1f}, {100 * found.interval[1]:+.1f}]"
            clipped, norm = (mean(getattr(row, key) for row in ends) for key in ("clip_fraction", "gradient_norm"))
            rows.append([name, *shown, difference, f"{clipped:.2%}", f"{norm:.2f}"])
        updates = sorted({row.updates for row in own})
        header = ["method", *(f"after {n}" for n in updates), f"difference after {last}", "clipped", "norm"]
        pools = len({row.pool for row in own})
        lines += [f"{steps} steps: {100 * before:.1f}% before; mean over {pools} pools, in %"]
        lines += columns(rows, header, "lr")
    return [
        *lines,
        f"{record.responses_per_update} responses per update, {record.validation_responses} validation responses; "
        f"intervals over pools of one policy; {record.seconds:.0f} s",
    ]
