"""The ablation table: the parts of each method and their effect on accuracy (after TEPO's table 2)."""

from __future__ import annotations

import pandas as pd

from ..analysis import difference, measures
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import labels, name_of

PARTS = ("ratio", "clip", "aggregation", "penalties")


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per evaluated arm: parts, final accuracy, and paired difference from the method that it is a variant of."""
    label = labels(results.study)
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
            "accuracy": round(float(own.mean()), 6),
            "compared_with": base or "",
        }
        if base is not None:
            d = difference(*measures.paired_scores(results, arm, base)).times(100)
            ends = (round(v, 6) for v in (d.mean, d.low, d.high))
            row |= dict(zip(("difference", "low", "high"), ends, strict=True)) | {"n": d.n, "unit": d.unit}
        rows.append(row)
    frame = pd.DataFrame(rows)
    cells = []
    for row in rows:
        change = (
            f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}] to {label(str(row['compared_with']))}"
            if row["compared_with"]
            else ""
        )
        parts = [str(row[key]) for key in PARTS]
        cells.append([name_of(results, str(row["arm"]), among=arms), *parts, f"{row['accuracy']:.1f}", change])
    over = " or ".join(dict.fromkeys(f"{row['n']} {row['unit']}" for row in rows if "unit" in row)) or "seeds"
    note = (
        "\nAccuracy in percent, mean over benchmarks. Differences in points, paired; their 95% intervals are over "
        f"{over}, not corrected for how many there are.\n"
    )
    header = ["method", *PARTS, "accuracy", "difference"]
    kept = [i for i in range(len(header)) if any(row[i] for row in cells)]  # a study without variants has no difference
    shown = markdown_table([header[i] for i in kept], [[row[i] for i in kept] for row in cells])
    return frame, shown + note


def _base(arm: str, arms: list[str]) -> str | None:
    """The arm that an arm is a variant of, with the same settings; None for the headline methods.

    It is that of TEPO or MPO by its method's name, else that of GRPO.
    """
    method, plus, settings = arm.partition("+")
    for name in ("tepo", "mpo"):
        if method.startswith(f"{name}_") and (base := name + plus + settings) in arms:
            return base
    base = f"grpo{plus}{settings}"
    return base if method not in ("grpo", "tepo", "mpo", "dapo") and base in arms else None


def _wording(name: str, params: object) -> str:
    """The name of a part with its parameters in parentheses."""
    settings = dict(params) if isinstance(params, dict) else {}
    inside = ", ".join(f"{k} {v}" for k, v in settings.items())
    return f"{name} ({inside})" if inside else name
