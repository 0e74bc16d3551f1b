"""The findings table: the methods that a study compares, regime by regime."""

from __future__ import annotations

import pandas as pd

from ..analysis.contrasts import (
    DIFFER,
    IDENTICAL,
    NOTHING,
    OPEN,
    Contrast,
    by_regime,
    contrasts,
    effect_text,
    pair_text,
    regime_text,
    sentences,
)
from ..analysis.controls import controls, controls_warning
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import labels

HEADER = ["regime", "comparison", "area", "final, sampled", "final, greedy", "p, corrected", "finding"]


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A sentence per regime and a row per comparison; if a control failed, that comes first."""
    found, label = contrasts(results), labels(results.study)
    parts = [f"**{text}**"] if (text := controls_warning(controls(results))) else []
    if not found:
        return pd.DataFrame(columns=["of", "than"]), "\n\n".join([*parts, "This study compares no methods.\n"])
    parts.append("\n".join(f"* {sentence}" for sentence in sentences(results, found, label)))
    cells = []
    regimes = [(regime_text(regime), group) for regime, group in by_regime(results.study, found).items()]
    for name, group in [*regimes, ("whole methods", [c for c in found if c.pair.whole])]:
        sensitive = any(c.decided for c in group)
        for i, c in enumerate(group):
            shown = [effect_text(d) for d in (c.area, c.sampled, c.greedy)]
            finding = _finding(c, sensitive) + "; endpoints disagree" * c.disagreement
            row = [pair_text(results.study, c.pair, label), *shown, f"{c.p:.2g}", finding]
            cells.append(["" if i else name, *row])
        if not (sensitive or all(c.identical or c.pair.whole for c in group)):
            cells.append(["", f"{NOTHING}.", "", "", "", "", ""])
    seeds = sorted({c.area.n for c in found})
    over = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    note = (
        f"Points, paired over {over} training seeds, 95% intervals, not corrected. The primary endpoint is the area "
        f"under the curve of validation accuracy; p is of no difference in it, corrected by Holm's method over all "
        f"{sum(not c.identical for c in found)} comparisons that are not identical.\n"
    )
    return pd.DataFrame([_row(c) for c in found]), "\n\n".join([*parts, f"{markdown_table(HEADER, cells)}\n{note}"])


def _finding(c: Contrast, sensitive: bool) -> str:
    """The outcome; that a difference is small counts only where something is shown to make a difference (rule 3)."""
    return c.outcome if sensitive or c.outcome in (DIFFER, IDENTICAL) else OPEN


def _row(c: Contrast) -> dict[str, object]:
    """A contrast in the CSV file."""
    row: dict[str, object] = {
        "experiment": c.pair.experiment,
        "of": c.pair.arm.name,
        "than": c.pair.reference.name,
    }
    for endpoint, found in (("area", c.area), ("sampled", c.sampled), ("greedy", c.greedy)):
        if found is not None:
            row |= {f"{endpoint}_{key}": value for key, value in found.numbers().items()}
    return row | {"p_corrected": c.p, "finding": c.outcome}
