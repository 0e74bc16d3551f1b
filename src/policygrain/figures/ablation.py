"""The ablation table: what each choice of a method does to it (after TEPO's table 2)."""

from __future__ import annotations

import pandas as pd

from ..analysis import difference, measures
from ..results.reader import StudyResults
from .style import label, name_of


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per evaluated arm: what it is made of, final accuracy, paired difference to the method that it varies."""
    rows = []
    arms = list(dict.fromkeys(run.arm for run in results.matrix.evaluated))
    for arm in arms:
        chosen = results.matrix.arms[arm].method(results.study)
        own = measures.accuracy(results, arm)
        base = _base(arm, arms)
        row = {
            "arm": arm,
            "ratio": chosen.ratio.label,
            "clip": _wording(chosen.clip.name, {k: v for k, v in chosen.clip.settings.items() if k in ("low", "high")}),
            "aggregation": chosen.aggregation.name,
            "penalties": "; ".join(_wording(p.name, p.changed) for p in chosen.penalties),
            "sampler": "dynamic" if chosen.sampler.dynamic else "",
            "accuracy": round(float(own.mean()), 2),
            "compared_with": base or "",
        }
        if base is not None:
            d = difference(*measures.paired_scores(results, arm, base)).times(100)
            ends = (round(v, 2) for v in (d.mean, d.low, d.high))
            row |= dict(zip(("difference", "low", "high"), ends, strict=True)) | {"n": d.n, "unit": d.unit}
        rows.append(row)
    frame = pd.DataFrame(rows)
    lines = [
        "| method | ratio | clip | aggregation | penalties | accuracy | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        change = (
            f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}] to {label(str(row['compared_with']))}"
            if row["compared_with"]
            else ""
        )
        parts = " | ".join(str(row[key]) for key in ("ratio", "clip", "aggregation", "penalties"))
        lines.append(f"| {name_of(results, str(row['arm']))} | {parts} | {row['accuracy']:.1f} | {change} |")
    over = " or ".join(dict.fromkeys(f"{row['n']} {row['unit']}" for row in rows if "unit" in row)) or "seeds"
    note = (
        f"\nPoints of accuracy, mean over benchmarks. Differences are paired; their 95% intervals are over {over}, not "
        "corrected for how many there are.\n"
    )
    return frame, "\n".join(lines) + "\n" + note


def _base(arm: str, arms: list[str]) -> str | None:
    """What an arm is a variant of: the headline method whose name it begins with, else GRPO."""
    for name in ("tepo", "mpo"):
        if arm.startswith(f"{name}_") and name in arms:
            return name
    return "grpo" if arm != "grpo" and arm not in ("tepo", "mpo", "dapo") and "grpo" in arms else None


def _wording(name: str, params: object) -> str:
    settings = dict(params) if isinstance(params, dict) else {}
    inside = ", ".join(f"{k} {v}" for k, v in settings.items())
    return f"{name} ({inside})" if inside else name
