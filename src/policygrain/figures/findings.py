"""The findings table: the questions of this project, and the study's answers."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from ..analysis.claim_text import comparison_text, effect_text, margin_text
from ..analysis.contrasts import Contrast, by_regime, contrasts
from ..analysis.controls import controls, controls_warning
from ..analysis.findings import answer, findings
from ..analysis.statistics import Difference
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import labels

REGIMES = ["regime", "comparison", "area", "final, sampled", "final, greedy", "p", "finding"]
NOTHING = "Nothing is shown to matter here, not even leaving the ratio out: ties say nothing about the grain."
HEADER = ["question", "comparison", "effect", "margin", "over", "finding"]


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A sentence per question and a row per comparison; if a control failed, that comes first."""
    found, label = findings(results), labels(results.study)
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
    for name, compared in contrasts(results).items():
        rows += [_row(name, c) for c in compared]
        parts.append(_regimes(name, compared, label))
    return pd.DataFrame(rows), "\n\n".join(parts)


def _regimes(name: str, compared: list[Contrast], label: Callable[[str], str]) -> str:
    """The contrasts of an experiment, regime by regime."""
    cells = []
    for settings, found in by_regime(compared).items():
        regime = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings) or "the study's settings"
        sensitive = any(c.decided for c in found)
        for i, c in enumerate(found):
            finding = "differ" if c.decided else "not shown to differ"
            if c.disagreement:
                finding += "; endpoints disagree"
            names = f"{label(c.pair.arm.method_name)} − {label(c.pair.reference.method_name)}"
            shown = [_effect(c.area), _effect(c.sampled), _effect(c.greedy), f"{c.p:.2g}"]
            cells.append(["" if i else regime, names, *shown, finding])
        if not sensitive:
            cells.append(["", NOTHING, "", "", "", "", ""])
    seeds = sorted({c.area.n for c in compared})
    over = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"### {name}\n\n{markdown_table(REGIMES, cells)}\nPoints, paired over {over} training seeds, 95% intervals, "
        "not corrected. The primary endpoint is the area under the curve of validation accuracy; p is of no difference "
        f"in it, corrected by Holm's method over the {len(compared)} rows.\n"
    )


def _effect(found: Difference | None) -> str:
    return "" if found is None else f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def _row(name: str, c: Contrast) -> dict[str, object]:
    """A contrast in the CSV file."""
    row: dict[str, object] = {"question": name, "of": c.pair.arm.name, "than": c.pair.reference.name}
    for endpoint, found in (("area", c.area), ("sampled", c.sampled), ("greedy", c.greedy)):
        if found is not None:
            row |= {f"{endpoint}_{key}": value for key, value in found.numbers().items()}
    return row | {"p_corrected": c.p, "finding": "differ" if c.decided else "not shown to differ"}
