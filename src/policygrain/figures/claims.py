"""The claims table: the claims of the papers, the results of this study, and the verdicts."""

from __future__ import annotations

import pandas as pd

from ..analysis.claim_text import comparison_text, counts_text, effect_text, margin_text
from ..analysis.claims import ClaimResult, compare, decide_claims, load_claims
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import label

HEADER = ["claim", "comparison", "effect", "margin", "finding", "verdict"]


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per comparison, and the table of all claims as Markdown."""
    decided = decide_claims(load_claims(), lambda c: compare(results, c))
    rows = [row for claim in decided for row in _rows(claim)]
    over = sorted({(f.n, f.unit) for claim in decided for f in claim.findings})
    note = (
        f"\n{counts_text(decided)} Each comparison is tested against its margin over "
        f"{' or '.join(f'{n} {unit}' for n, unit in over) or 'no seeds'}, paired, and corrected by Holm's method over "
        "all comparisons; intervals are 95%, not corrected. A claim is supported if all its comparisons are, and not "
        f"supported if one is not. These results are for {results.study.title or results.study.name} and do not decide "
        "the claims for other models.\n"
    )
    cells = [row for claim in decided for row in _cells(claim)]
    return pd.DataFrame(rows), markdown_table(HEADER, cells) + note


def _rows(result: ClaimResult) -> list[dict[str, object]]:
    """The rows of a claim in the CSV file, one per comparison."""
    name, claim, verdict = result.name, result.claim, result.verdict
    if verdict is None:
        return [{"claim": name, "source": claim.source, "verdict": "no records", "missing": result.missing}]
    rows: list[dict[str, object]] = []
    for c, f in zip(claim.comparisons, result.findings, strict=True):
        numbers = {"effect": f.effect, "low": f.low, "high": f.high, "effect_unit": c.unit, "n": f.n, "unit": f.unit}
        tests = {f"p_{name}": p for name, p in f.p._asdict().items()}
        kept = {**numbers, **tests, "seeds_needed": f.seeds_needed, "finding": f.verdict, "verdict": verdict}
        rows.append({"claim": name, "source": claim.source, **c.model_dump(), **kept})
    return rows


def _cells(result: ClaimResult) -> list[list[str]]:
    """The rows of a claim in the Markdown table; only the first one has text and verdict."""
    claim = result.claim
    text = f"{claim.text} ({claim.source})" + (f" *{claim.reading}*" if claim.reading else "")
    if result.verdict is None:
        return [[text, "", result.missing, "", "", "no records"]]
    rows: list[list[str]] = []
    for c, f in zip(claim.comparisons, result.findings, strict=True):
        ends = ("", "") if rows else (text, f"**{result.verdict}**")
        rows.append([ends[0], comparison_text(c, label), effect_text(c, f), margin_text(c), f.verdict, ends[1]])
    return rows
