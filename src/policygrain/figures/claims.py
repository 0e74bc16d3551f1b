"""The claims table: the claims of the papers, the results of this study, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from ..analysis import measures
from ..analysis.claims import ClaimResult, Comparison, decide_claims, load_claims
from ..analysis.statistics import Evidence
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import label


def compare(results: StudyResults, c: Comparison) -> list[float]:
    """The numbers of a comparison, one for each seed that both arms have."""
    if c.statistic in ("steps", "tokens"):
        return measures.reached(results, c.of, c.than, c.statistic).tolist()
    statistics: dict[str, Callable[[str], pd.Series]] = {
        "accuracy": lambda arm: measures.accuracy(results, arm),
        "metric": lambda arm: measures.late(results, arm, c.metric),
        "probe": lambda ratio: measures.probed(results, ratio, c.metric),
    }
    a, b = (statistics[c.statistic](name) for name in (c.of, c.than))
    both = pd.DataFrame({"a": a, "b": b}).dropna()
    values = np.log2(both["a"] / both["b"]) if c.log else both["a"] - both["b"]
    return [float(v) for v in values]


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per comparison, and the table of all claims as Markdown."""
    decided = decide_claims(load_claims(), lambda c: compare(results, c))
    rows = [row for claim in decided for row in _rows(claim)]
    counts = pd.Series([claim.verdict or "no records" for claim in decided]).value_counts()
    head = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    seeds = sorted({e.seeds for claim in decided for e in claim.evidence})
    note = (
        f"\nOf {len(decided)} claims: {head}. Each comparison is a paired t-test over "
        f"{'/'.join(map(str, seeds)) or 'no'} seeds against its margin, corrected by Holm's method over all "
        "comparisons; intervals are 95%, not corrected. A claim is supported if all its comparisons support it, "
        f"and not supported if one is refuted. Study: {results.study.title or results.study.name}. It does "
        "not decide the claims for other models.\n"
    )
    cells = [row for claim in decided for row in _cells(claim)]
    return pd.DataFrame(rows), markdown_table(["claim", "comparison", "effect", "verdict"], cells) + note


def _rows(result: ClaimResult) -> list[dict[str, object]]:
    """The rows of a claim in the CSV file, one per comparison."""
    name, claim, verdict = result.name, result.claim, result.verdict
    if verdict is None:
        return [{"claim": name, "source": claim.source, "verdict": "no records", "missing": result.missing}]
    return [
        {
            "claim": name,
            "source": claim.source,
            **c.model_dump(),
            **e._asdict(),
            "p_corrected": p,
            "verdict": verdict,
        }
        for c, e, p in zip(claim.comparisons, result.evidence, result.corrected, strict=True)
    ]


def _cells(result: ClaimResult) -> list[list[str]]:
    """The rows of a claim in the Markdown table; only the first one has text and verdict."""
    claim = result.claim
    text = f"{claim.text} ({claim.source})" + (f" *{claim.reading}*" if claim.reading else "")
    if result.verdict is None:
        return [[text, "", result.missing, "no records"]]
    rows: list[list[str]] = []
    for c, e in zip(claim.comparisons, result.evidence, strict=True):
        first = not rows
        rows.append([text if first else "", _wording(c), _effect(c, e), f"**{result.verdict}**" if first else ""])
    return rows


def _wording(c: Comparison) -> str:
    """A comparison in words."""
    statistics = {
        "accuracy": "accuracy",
        "steps": "optimizer steps to the same accuracy",
        "tokens": "tokens to the same accuracy",
    }
    name = statistics.get(c.statistic, c.metric.replace("_", " "))
    names = (c.of, c.than) if c.statistic == "probe" else (label(c.of), label(c.than))
    return f"{name}: {names[0]} {'apart from' if c.claimed == 'apart' else c.claimed} {names[1]}"


def _effect(c: Comparison, e: Evidence) -> str:
    """Effect and 95% interval, and how many seeds are needed if the comparison is undecided."""
    if c.log or c.statistic in ("steps", "tokens"):
        shown = f"×{2**e.effect:.2f} [{2**e.low:.2f}, {2**e.high:.2f}]"
    else:
        unit = " points" if c.statistic == "accuracy" or c.metric == "clip_fraction" else ""
        shown = f"{e.effect:+.2g} [{e.low:+.2g}, {e.high:+.2g}]{unit}"
    needed = f"; about {e.seeds_needed} seeds would decide" if e.seeds_needed else "; over 1,000 seeds would be needed"
    decided = min(e.p_for, e.p_against) < 0.05
    return shown + ("" if decided else needed)
