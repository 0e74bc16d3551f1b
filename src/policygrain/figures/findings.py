"""The findings table: the questions of this project, and the study's answers."""

from __future__ import annotations

import pandas as pd

from ..analysis.claim_text import comparison_text, effect_text, margin_text
from ..analysis.controls import controls, controls_warning
from ..analysis.findings import answer, findings
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import label

HEADER = ["question", "comparison", "effect", "margin", "over", "finding"]


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A sentence per question and a row per comparison; if a control failed, that comes first."""
    found = findings(results)
    warning = [f"**{text}**"] if (text := controls_warning(controls(results))) else []
    sentences = [f"* {answer(result, label)}" for result in found]
    rows: list[dict[str, object]] = []
    cells = []
    for result in found:
        if not result.findings:
            rows.append({"question": result.name, "finding": "no records", "missing": result.missing})
            cells.append([result.claim.text, "", result.missing, "", "", "no records"])
        for i, (c, f) in enumerate(zip(result.claim.comparisons, result.findings, strict=False)):
            numbers = {
                "effect": f.effect,
                "low": f.low,
                "high": f.high,
                "effect_unit": c.unit,
                "n": f.n,
                "unit": f.unit,
            }
            rows.append({"question": result.name, **c.model_dump(), **numbers, "finding": f.verdict})
            text = "" if i else result.claim.text
            shown = [comparison_text(c, label), effect_text(c, f), margin_text(c), f"{f.n} {f.unit}", f.verdict]
            cells.append([text, *shown])
    note = (
        "\nIntervals are 95%, paired, not corrected; findings are corrected by Holm's method over this table. The "
        "effect is the first minus the second.\n"
    )
    parts = [*warning, "\n".join(sentences), markdown_table(HEADER, cells) + note]
    return pd.DataFrame(rows), "\n\n".join(parts)
