"""The table of docs/training.md: what each trainer has, from the table that checks it."""

from __future__ import annotations

from policygrain.engines.table import FEATURES


def trainers() -> str:
    """A row per feature that some trainer lacks."""
    rows = ["| a study asks for | `policygrain` | `trl` | `verl` |", "|---|---|---|---|"]
    yes = {True: "yes", False: "–"}
    rows.append("| several processes per run | – | yes | yes |")
    rows.append("| runs that are paired with those of the loop | yes | yes | – |")
    rows += [f"| {f.text} | yes | {yes[f.trl]} | {yes[f.verl]} |" for f in FEATURES]
    return "\n".join(rows)


BLOCKS = {"trainers": trainers}
