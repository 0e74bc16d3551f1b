"""The claims table: what the papers say, what this study measured, and whether it decides anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from ..analysis import measures
from ..analysis.claims import Comparison, Judged, judge, ledger
from ..analysis.statistics import Evidence
from ..results.reader import StudyResults
from .style import label


def compare(results: StudyResults, c: Comparison) -> list[float]:
    """The comparison's number for each seed that both arms have."""
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
    """A row per comparison, and the ledger as Markdown."""
    judged = judge(ledger(), lambda c: compare(results, c))
    rows = [row for j in judged for row in _rows(j)]
    blocks = "\n".join(_block(j) for j in judged)
    counts = pd.Series([j.verdict or "no records" for j in judged]).value_counts()
    head = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    seeds = sorted({e.seeds for j in judged for e in j.evidence})
    note = (
        f"\nOf {len(judged)} claims: {head}. Each comparison is a paired t-test over "
        f"{'/'.join(map(str, seeds)) or 'no'} seeds against its margin, corrected by Holm's method over the whole "
        "ledger; intervals are 95%, not corrected. A claim is supported when all its comparisons are, not supported "
        f"when one is refuted. This is {results.study.title or results.study.name}: it decides nothing about other "
        "models.\n"
    )
    lines = ["| claim | comparison | effect | verdict |", "|---|---|---|---|", blocks]
    return pd.DataFrame(rows), "\n".join(lines) + "\n" + note


def _rows(j: Judged) -> list[dict[str, object]]:
    if j.verdict is None:
        return [{"claim": j.name, "source": j.claim.source, "verdict": "no records", "missing": j.missing}]
    return [
        {
            "claim": j.name,
            "source": j.claim.source,
            **c.model_dump(),
            **e._asdict(),
            "p_corrected": p,
            "verdict": j.verdict,
        }
        for c, e, p in zip(j.claim.comparisons, j.evidence, j.corrected, strict=True)
    ]


def _block(j: Judged) -> str:
    text = f"{j.claim.text} ({j.claim.source})" + (f" *{j.claim.reading}*" if j.claim.reading else "")
    if j.verdict is None:
        return f"| {text} | | {j.missing} | no records |"
    lines: list[str] = []
    for c, e in zip(j.claim.comparisons, j.evidence, strict=True):
        shown = text if not lines else ""
        verdict = f"**{j.verdict}**" if not lines else ""
        lines.append(f"| {shown} | {_wording(c)} | {_effect(c, e)} | {verdict} |")
    return "\n".join(lines)


def _wording(c: Comparison) -> str:
    what = {
        "accuracy": "accuracy",
        "steps": "optimizer steps to the same accuracy",
        "tokens": "tokens to the same accuracy",
    }
    name = what.get(c.statistic, c.metric.replace("_", " "))
    names = (c.of, c.than) if c.statistic == "probe" else (label(c.of), label(c.than))
    return f"{name}: {names[0]} {'apart from' if c.claimed == 'apart' else c.claimed} {names[1]}"


def _effect(c: Comparison, e: Evidence) -> str:
    if c.log or c.statistic in ("steps", "tokens"):
        shown = f"×{2**e.effect:.2f} [{2**e.low:.2f}, {2**e.high:.2f}]"
    else:
        unit = " points" if c.statistic == "accuracy" or c.metric == "clip_fraction" else ""
        shown = f"{e.effect:+.2g} [{e.low:+.2g}, {e.high:+.2g}]{unit}"
    needed = f"; about {e.seeds_needed} seeds would decide" if e.seeds_needed else "; over 1,000 seeds would be needed"
    decided = min(e.p_for, e.p_against) < 0.05
    return shown + ("" if decided else needed)
