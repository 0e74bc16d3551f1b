"""The claims of two studies side by side, and agreement of their verdicts."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from ..results.reader import StudyResults
from ..study.fingerprint import start_seeds
from .claims import ClaimResult, Finding, decide_study
from .controls import controls, controls_warning

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
    both = [findings for pair in pairs for findings in pair.findings]
    same = sum(a.effect * b.effect > 0 for a, b in both)
    overlap = sum(a.low <= b.high and b.low <= a.high for a, b in both)
    lines.append(
        f"Of {len(both)} comparisons that both have, decided or not: {same} have effects of the same direction, "
        f"{overlap} have intervals that overlap."
    )
    return "\n".join(lines)
