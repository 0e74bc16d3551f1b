"""The table of docs/training.md: what each trainer has, from the table that checks it."""

from __future__ import annotations

from policygrain.engines.table import FEATURES, TRAINERS


def trainers() -> str:
    """A row per feature that some trainer lacks."""
    rows = [f"| a study asks for | {' | '.join(f'`{name}`' for name in TRAINERS)} |", "|---|---|---|---|"]
    rows.append("| several processes per run | – | yes | yes |")
    rows.append("| runs that are paired with those of the loop | yes | yes | without dynamic sampling, on one GPU |")
    for feature in FEATURES:
        has = ("yes" if trainer in feature.trainers else "–" for trainer in TRAINERS)
        rows.append(f"| {feature.text} | {' | '.join(has)} |")
    return "\n".join(rows)


BLOCKS = {"trainers": trainers}
