"""Comparison of two studies, such as two commits or two settings: which numbers differ beyond noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import UserError
from ..results.reader import StudyResults
from .statistics import LEVEL, holm, interval, paired_difference, weigh


def compare_studies(a: Path, b: Path) -> tuple[pd.DataFrame, str]:
    """B − A in points for every arm and benchmark that both studies have, as a table and as text.

    p-values are from t-tests over seeds, corrected by Holm's method over all rows. Intervals are paired by seed, and by
    problem if both studies have the same problems.
    """
    first, second = StudyResults(a), StudyResults(b)
    pairs = [
        (arm, benchmark)
        for arm in dict.fromkeys(first.evaluations["arm"])
        for benchmark in first.benchmarks
        if arm in set(second.evaluations["arm"]) and benchmark in second.benchmarks
    ]
    if not pairs:
        raise UserError(f"{a} and {b}: no arm and benchmark that both have.")
    rows = []
    for arm, benchmark in pairs:
        before, after = (r.scores(arm, benchmark) for r in (first, second))
        seeds = min(len(before), len(after))
        before, after = before[:seeds], after[:seeds]
        if before.shape == after.shape:
            change = paired_difference(after, before)
        else:
            x, y = interval(after), interval(before)
            change = x._replace(mean=x.mean - y.mean, low=x.low - y.high, high=x.high - y.low)
        evidence = weigh([100 * float(v) for v in after.mean(1) - before.mean(1)], "apart")
        numbers = dict(zip(("change", "low", "high"), (100 * v for v in change), strict=True))
        rows.append({"arm": arm, "benchmark": benchmark, "seeds": seeds, **numbers, "p": evidence.p_for})
    frame = pd.DataFrame(rows)
    frame["p_corrected"] = holm(frame["p"].tolist())
    frame["identical"] = np.isclose(frame[["change", "low", "high"]].abs().max(axis=1), 0)
    return frame, _text(frame, first, second)


def _text(frame: pd.DataFrame, first: StudyResults, second: StudyResults) -> str:
    lines = [f"A {first.folder.path}: {_made(first)}", f"B {second.folder.path}: {_made(second)}", ""]
    moved = frame[(frame["p_corrected"] < LEVEL) & ~frame["identical"]]
    apart = (frame["low"] > 0) | (frame["high"] < 0) | (frame["p_corrected"] < LEVEL)
    by_interval = frame[apart & ~frame["identical"]]
    same = int(frame["identical"].sum())
    lines.append(
        f"{len(frame)} numbers in both; {same} identical; {len(moved)} moved beyond noise (t-test over seeds, "
        f"corrected, *); including those whose 95% interval, not corrected, excludes zero: {len(by_interval)}"
    )
    for _, row in by_interval.sort_values("change").iterrows():
        mark = "*" if row["p_corrected"] < LEVEL else " "
        change = f"{row['change']:+6.1f} [{row['low']:+.1f}, {row['high']:+.1f}]"
        lines.append(f"{mark} {row['arm']:20} {row['benchmark']:20} {change}")
    return "\n".join(lines)


def _made(results: StudyResults) -> str:
    found = {summary.environment.commit[:12] or "unknown" for summary in results.summaries.values()}
    return f"commit {', '.join(sorted(found)) or 'unknown'}, {len(results.matrix.runs)} runs"
