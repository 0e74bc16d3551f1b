"""The table of docs/training.md: what each trainer has, from the table that checks it."""

from __future__ import annotations

from policygrain.engines.table import LACKS, ONLY_LOOP, ONLY_LOOP_AND_TRL


def trainers() -> str:
    """A row per feature that some trainer lacks."""
    rows = ["| a study asks for | `policygrain` | `trl` | `verl` |", "|---|---|---|---|"]
    rows.append("| several processes per run | – | yes | yes |")
    rows.append("| runs that are paired with those of the loop | yes | yes | without dynamic sampling, on one GPU |")
    for text in ONLY_LOOP | ONLY_LOOP_AND_TRL:
        has = ("–" if text in LACKS[trainer] else "yes" for trainer in LACKS)
        rows.append(f"| {text} | {' | '.join(has)} |")
    return "\n".join(rows)


BLOCKS = {"trainers": trainers}
