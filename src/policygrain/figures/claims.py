"""The claims table: the claims of the papers, the results of this study, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from ..analysis.claim_text import comparison_text, counts_text, effect_text, instrument, margin_text
from ..analysis.claims import ClaimResult, decide_study
from ..analysis.controls import controls, controls_text, controls_warning
from ..analysis.statistics import SEEDS
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import labels

UNDECIDED = "### Undecided claims"  # the heading of their table
HEADER = ["claim", "comparison", "effect", "margin", "finding", "verdict"]


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per comparison, and the table of all claims as Markdown; if a control failed, that comes first."""
    decided, judged = decide_study(results), controls(results)
    label = labels(results.study)
    rows = [row for claim in decided for row in _rows(claim)]
    units = sorted({(f.unit != SEEDS, f.n, f.unit) for claim in decided for f in claim.findings})
    over = " or ".join(f"{n} {unit}" for _, n, unit in units) or "no seeds"
    tests = (
        "all tests are for planned numbers, although seeds were added to arms of undecided claims, so that they decide "
        "somewhat too often"
        if results.added
        else "all tests are for planned numbers"
    )
    note = (
        f"\n{counts_text(decided)} Each comparison is tested against its margin over {over}, paired, and corrected by "
        f"Holm's method over all comparisons; {tests}. Intervals are 95%, not corrected. A claim is supported if all "
        "its comparisons are, and not supported if one is not. These results are for "
        f"{results.study.title or results.study.name} and do not decide the claims for other models.\n"
    )
    # Markdown: decided claims first; the others after a heading of their own, by which the report folds them.
    groups: dict[bool, list[list[str]]] = {True: [], False: []}
    for claim in decided:
        groups[claim.verdict not in ("undecided", None)] += _cells(claim, label)
    first = markdown_table(HEADER, groups[True]) if groups[True] else "No claim is decided.\n"
    others = f"\n{UNDECIDED}\n\n{markdown_table(HEADER, groups[False])}" if groups[False] else ""
    warning = f"**{text}**\n\n" if (text := controls_warning(judged)) else ""
    shown = f"\n```\n{controls_text(judged)}\n```\n" if judged else ""
    return pd.DataFrame(rows), warning + first + note + shown + others


def _rows(result: ClaimResult) -> list[dict[str, object]]:
    """The rows of a claim in the CSV file, one per comparison."""
    name, claim, verdict = result.name, result.claim, result.verdict
    if verdict is None:
        return [{"claim": name, "source": claim.source, "verdict": result.outcome, "missing": result.missing}]
    rows: list[dict[str, object]] = []
    for c, f in zip(claim.comparisons, result.findings, strict=True):
        numbers = {"effect": f.effect, "low": f.low, "high": f.high, "effect_unit": c.unit, "n": f.n, "unit": f.unit}
        tests = {f"p_{name}": p for name, p in f.p._asdict().items()}
        kept = {**numbers, **tests, "seeds_needed": f.seeds_needed, "finding": f.verdict, "verdict": verdict}
        asked = {**c.model_dump(), "instrument": instrument(c), "comparison": comparison_text(c)}
        rows.append({"claim": name, "source": claim.source, **asked, **kept})
    return rows


def _cells(result: ClaimResult, label: Callable[[str], str]) -> list[list[str]]:
    """The rows of a claim in the Markdown table; only the first one has text and verdict."""
    claim = result.claim
    text = f"{claim.text} ({claim.source})" + (f" *{claim.reading}*" if claim.reading else "")
    if result.verdict is None:
        return [[text, "", result.missing, "", "", result.outcome]]
    rows: list[list[str]] = []
    for c, f in zip(claim.comparisons, result.findings, strict=True):
        ends = ("", "") if rows else (text, f"**{result.verdict}**")
        rows.append([ends[0], comparison_text(c, label), effect_text(c, f), margin_text(c), f.verdict, ends[1]])
    return rows
