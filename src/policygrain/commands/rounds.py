"""Measure one round of updates by each method, from the same policy and rollouts.

The policy is validated with the same sampling seeds after each method's updates (docs/rounds.md).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import add_start_options, add_study_option

if TYPE_CHECKING:
    from ..results.measurements import RoundsRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    add_start_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the records and print them."""
    from ..instruments.inputs import measure_starts
    from ..instruments.rounds import ROUNDS
    from ..study import load_study

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    own = arguments.start, arguments.data, arguments.out, arguments.done
    for record in measure_starts(ROUNDS, study, seeds, *own):
        print("\n".join(table(record)), flush=True)


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
