"""Tables on trainers that the objective runs in."""

from __future__ import annotations

import json
from collections.abc import Callable

from .common import ROOT, read, table


def in_trl() -> str:
    """What PolicyGrainTrainer adds to TRL's step."""
    found = read("objective_cost")["in_trl"]
    rows = [
        [f"`{name}`", f"{row['added'] * 1e3:+.1f} ms", f"{row['share']:+.2%}"] for name, row in found["methods"].items()
    ]
    return table(["objective", "added to a step", "share of it"], rows) + (
        f"\n\nA step of TRL takes {found['seconds_per_step']:.2f} s."
    )


def same_name() -> str:
    """What names mean in other trainers, from the record that a test holds."""
    record = json.loads((ROOT / "docs/integrations/same-name.json").read_text())
    rows = []
    for row in record["names"]:
        depends = row["depends_on_division"]
        losses = (
            " / ".join(f"{loss:.4f}" for loss in row["losses"]) if depends else "–" if depends is None else "the same"
        )
        paper = f"`{row['preset']}`"
        equals = "as published" if row["equals"] == row["preset"] else row["equals"] or "none that is known"
        trainer = f"{row['trainer']} {record['versions'][row['trainer']]}"
        rows.append(
            [trainer, f"`{row['setting']}`", paper, equals, f"{row['cosine']:.2f}", f"{row['norm']:.2f}", losses]
        )
    header = ["trainer", "setting", "preset", "equals", "cosine", "norm", "1 / 2 / 4 micro-batches"]
    return table(header, rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "same-name": same_name,
    "in-trl": in_trl,
}
