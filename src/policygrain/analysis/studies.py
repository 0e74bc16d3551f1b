"""Comparison of two studies, such as two commits, two settings or a replication: accuracies and claims."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from ..errors import UserError
from ..results.reader import StudyResults
from ..study.fingerprint import start_seeds
from .claims import ClaimResult, Finding, decide_study
from .controls import controls, controls_warning
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


# ---- claims ---------------------------------------------------------------------------------------------------------

Agreement = Literal["same", "differs", "contradicts", "open"]


class ClaimPair(NamedTuple):
    """One claim in two studies."""

    name: str
    first: ClaimResult
    second: ClaimResult

    @property
    def agreement(self) -> Agreement:
        """Open if a study has no verdict; only "holds" and "opposite" contradict each other."""
        verdicts = (self.first.verdict, self.second.verdict)
        if None in verdicts or "undecided" in verdicts:
            return "open"
        if verdicts[0] == verdicts[1]:
            return "same"
        return "differs" if "smaller than published" in verdicts else "contradicts"

    @property
    def findings(self) -> list[tuple[Finding, Finding]]:
        """The comparisons that both studies have, with any verdict."""
        return list(zip(self.first.findings, self.second.findings, strict=False))


def compare_claims(first: StudyResults, second: StudyResults) -> list[ClaimPair]:
    """Every claim with its verdicts in two studies, each decided by the study's own design."""
    pairs = zip(decide_study(first), decide_study(second), strict=True)
    return [ClaimPair(one.name, one, two) for one, two in pairs]


def shared_seeds(first: StudyResults, second: StudyResults) -> list[int]:
    """Seeds of training runs or initial models that both studies have; studies that share one are not independent."""
    one, two = ({run.seed for run in r.matrix.runs} | set(start_seeds(r.study)) for r in (first, second))
    return sorted(one & two)


def replication_text(pairs: list[ClaimPair], first: StudyResults, second: StudyResults) -> str:
    """Verdicts side by side for the terminal; the last lines give counts."""
    lines = []
    for name, results in (("A", first), ("B", second)):
        if warning := controls_warning(controls(results)):
            lines.append(f"{name}: {warning}")
    if shared := shared_seeds(first, second):
        lines.append(
            f"Both studies have {'seed' if len(shared) == 1 else 'seeds'} {', '.join(map(str, shared))}: they are not "
            "independent, and agreement of their claims is no replication."
        )
    lines.append("Claims, verdict of A | verdict of B:")
    for pair in pairs:
        outcomes = " | ".join(r.outcome for r in (pair.first, pair.second))
        lines.append(f"  {pair.name:28} {pair.agreement:12} {outcomes}")
    counts = Counter(pair.agreement for pair in pairs)
    lines.append(
        f"Of {len(pairs)} claims: {counts['same']} have the same verdict, {counts['differs']} differ, "
        f"{counts['contradicts']} contradict, {counts['open']} are open."
    )
    comparisons = [findings for pair in pairs for findings in pair.findings]
    same = sum(a.effect * b.effect > 0 for a, b in comparisons)
    overlap = sum(a.low <= b.high and b.low <= a.high for a, b in comparisons)
    lines.append(
        f"Of {len(comparisons)} comparisons that both have, decided or not: {same} have effects of the same direction, "
        f"{overlap} have intervals that overlap."
    )
    return "\n".join(lines)
