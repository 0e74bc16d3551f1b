"""Comparison of two studies, such as two commits, two settings or a replication: accuracies and claims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import UserError
from ..results.reader import StudyResults
from .replication import compare_claims, replication_text, shared_seeds
from .statistics import LEVEL, Difference, difference
from .verdicts import holm

COLUMNS = ["arm", "benchmark", "n", "unit", "change", "low", "high", "p", "identical", "p_corrected"]


def compare_studies(a: Path, b: Path) -> tuple[pd.DataFrame, str]:
    """B − A in points for every arm and benchmark that both studies have, as a table and as text; then their claims.

    Differences are paired by seed and problem; p-values are corrected by Holm's method over all rows. Studies without a
    common seed, such as a study and its replication, are compared by their claims alone, and the table is empty.
    """
    first, second = StudyResults(a), StudyResults(b)
    claims = replication_text(compare_claims(first, second), first, second)
    if not shared_seeds(first, second):
        none = "No seed is in both studies, so their accuracies are not paired; their claims are compared."
        return pd.DataFrame(columns=COLUMNS), "\n".join([*_heads(first, second), none, "", claims])
    pairs = [
        (arm, benchmark)
        for arm in dict.fromkeys(first.evaluations["arm"])
        for benchmark in first.benchmarks
        if arm in set(second.evaluations["arm"]) and benchmark in second.benchmarks
    ]
    rows, skipped = [], []
    for arm, benchmark in pairs:
        compared = _change(first, second, arm, benchmark)
        if compared is None:
            skipped.append(f"{arm} {benchmark}")
            continue
        change, identical = compared
        numbers = {"n": change.n, "unit": change.unit, "change": change.mean, "low": change.low, "high": change.high}
        rows.append({"arm": arm, "benchmark": benchmark, **numbers, "p": change.p, "identical": identical})
    if not rows:
        raise UserError(f"{a} and {b}: no arm and benchmark that both have on the same seeds and problems.")
    frame = pd.DataFrame(rows)
    frame["p_corrected"] = holm(frame["p"].tolist())
    return frame, f"{_text(frame, first, second, skipped)}\n\n{claims}"


def _change(first: StudyResults, second: StudyResults, arm: str, benchmark: str) -> tuple[Difference, bool] | None:
    """B − A in points, and whether all scores are equal; None without common seeds and problems."""
    tables = [r.evaluations for r in (first, second)]
    rows = [table[(table["arm"] == arm) & (table["benchmark"] == benchmark)] for table in tables]
    one, two = (arm_rows.set_index("seed")["per_problem"] for arm_rows in rows)
    seeds = sorted(set(one.index) & set(two.index))
    if not seeds or {len(v) for v in one.loc[seeds]} != {len(v) for v in two.loc[seeds]}:
        return None
    before, after = (np.array(scores.loc[seeds].tolist(), dtype=float) for scores in (one, two))
    return difference([after], [before]).times(100), bool((before == after).all())


def _text(frame: pd.DataFrame, first: StudyResults, second: StudyResults, skipped: list[str]) -> str:
    lines = _heads(first, second)
    sure = (frame["p_corrected"] < LEVEL) & ~frame["identical"]
    shown = frame[(sure | (frame["low"] > 0) | (frame["high"] < 0)) & ~frame["identical"]]
    over = " or ".join(dict.fromkeys(f"{n} {unit}" for n, unit in zip(frame["n"], frame["unit"], strict=True)))
    lines += [
        f"{len(frame)} accuracies are in both studies, {int(frame['identical'].sum())} of them identical.",
        f"B − A in points with 95% intervals over {over}, paired:",
        f"{len(shown)} intervals exclude 0 (by chance about 1 of 20 would); {int(sure.sum())} differences (*) have "
        f"p < {LEVEL:g}",
        f"after Holm's correction over all {len(frame)} comparisons.",
    ]
    for _, row in shown.sort_values("change").iterrows():
        mark = "*" if row["p_corrected"] < LEVEL else " "
        change = f"{row['change']:+6.1f} [{row['low']:+.1f}, {row['high']:+.1f}]"
        lines.append(f"{mark} {row['arm']:20} {row['benchmark']:20} {change}")
    if skipped:
        lines.append(f"Not compared, other seeds or problems: {', '.join(skipped)}.")
    return "\n".join(lines)


def _heads(first: StudyResults, second: StudyResults) -> list[str]:
    return [f"A {first.folder.path}: {_made(first)}", f"B {second.folder.path}: {_made(second)}", ""]


def _made(results: StudyResults) -> str:
    commits = {summary.environment.commit[:12] or "unknown" for summary in results.summaries.values()}
    return f"commit {', '.join(sorted(commits)) or 'unknown'}, {len(results.matrix.runs)} runs"
