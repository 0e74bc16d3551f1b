"""The claims of two studies side by side: which verdicts replicate."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from ..results.reader import StudyResults
from ..study.fingerprint import start_seeds
from .claims import ClaimResult, decide_study
from .controls import controls, controls_warning

Agreement = Literal["same", "both reject", "contradicts", "open"]


class ClaimPair(NamedTuple):
    """One claim in two studies."""

    name: str
    first: ClaimResult
    second: ClaimResult

    @property
    def agreement(self) -> Agreement:
        """Open if a study has no verdict; "not supported" and "no difference" both reject the claim."""
        verdicts = (self.first.verdict, self.second.verdict)
        if None in verdicts or "undecided" in verdicts:
            return "open"
        if verdicts[0] == verdicts[1]:
            return "same"
        return "contradicts" if "supported" in verdicts else "both reject"


def compare_claims(first: StudyResults, second: StudyResults) -> list[ClaimPair]:
    """Every claim with its verdicts in two studies, each decided by the study's own design."""
    pairs = zip(decide_study(first), decide_study(second), strict=True)
    return [ClaimPair(one.name, one, two) for one, two in pairs]


def shared_seeds(first: StudyResults, second: StudyResults) -> list[int]:
    """Seeds of training runs or start models that both studies have; with one of these they are not independent."""
    one, two = ({run.seed for run in r.matrix.runs} | set(start_seeds(r.study)) for r in (first, second))
    return sorted(one & two)


def replication_text(pairs: list[ClaimPair], first: StudyResults, second: StudyResults) -> str:
    """Verdicts side by side for the terminal; the last line counts."""
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
        said = " | ".join(r.outcome for r in (pair.first, pair.second))
        lines.append(f"  {pair.name:26} {pair.agreement:12} {said}")
    counts = Counter(pair.agreement for pair in pairs)
    lines.append(
        f"Of {len(pairs)} claims: {counts['same']} have the same verdict, {counts['both reject']} are rejected by both "
        f"with different verdicts, {counts['contradicts']} contradict, {counts['open']} are open."
    )
    return "\n".join(lines)
