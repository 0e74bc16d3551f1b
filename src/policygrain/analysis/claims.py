"""Verdicts on all claims of a study, corrected together, by tests for planned numbers of replicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from .comparisons import NotFlat, compare
from .ledger import Claim, Comparison, load_claims
from .statistics import LEVEL, Difference
from .verdicts import PValues, Verdict, combine, corrected, decide, distance_to_decide, effect_tests, seeds_needed

if TYPE_CHECKING:
    from ..results.reader import StudyResults


class Finding(NamedTuple):
    """The result of one comparison; effect and interval are in the comparison's unit."""

    effect: float
    low: float  # 95% interval, not corrected for multiple comparisons
    high: float
    n: int
    unit: str  # of replication
    p: PValues  # corrected by Holm's method over all comparisons of the ledger
    verdict: Verdict
    seeds_needed: int | None  # approximate number that would decide; None: more than 1,000, or not known

    @property
    def smaller(self) -> bool:
        """Whether the effect is shown to be smaller than the published size, with any verdict."""
        return self.p.smaller < LEVEL


class ClaimResult(NamedTuple):
    """A claim with its findings and verdict; without findings ``missing`` gives the reason."""

    name: str
    claim: Claim
    findings: list[Finding]
    verdict: Verdict | None  # None: no records
    missing: str = ""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        if self.verdict == "holds" and any(finding.smaller for finding in self.findings):
            return "holds, smaller than published"
        return self.verdict or "no records"

    @property
    def decisive(self) -> int:
        """Index of the comparison that decides the verdict: the first with it, or the largest p-value if all hold."""
        if self.verdict == "holds":
            return max(range(len(self.findings)), key=lambda i: self.findings[i].p.holds)
        return next(i for i, finding in enumerate(self.findings) if finding.verdict == self.verdict)


def decide_study(results: StudyResults) -> list[ClaimResult]:
    """Decide the claims of the package from a study's records."""
    return decide_claims(load_claims(), lambda c: compare(results, c))


def decide_claims(claims: dict[str, Claim], compare: Callable[[Comparison], Difference]) -> list[ClaimResult]:
    """Decide every claim. It has no verdict if ``compare`` raises a UserError for a comparison.

    It is undecided if ``compare`` raises NotFlat. All comparisons are corrected together.
    """
    differences: dict[str, list[Difference]] = {}
    missing: dict[str, str] = {}
    not_decidable: dict[str, Verdict] = {}
    for name, claim in claims.items():
        try:
            differences[name] = [compare(c) for c in claim.comparisons]
        except UserError as error:
            missing[name] = str(error)
            if isinstance(error, NotFlat):
                not_decidable[name] = "undecided"
    comparisons = [c for name in differences for c in claims[name].comparisons]
    findings = iter(_findings(comparisons, [d for measured in differences.values() for d in measured]))
    results = []
    for name, claim in claims.items():
        of_claim = [next(findings) for _ in differences.get(name, [])]
        verdict = combine([f.verdict for f in of_claim]) if of_claim else not_decidable.get(name)
        results.append(ClaimResult(name, claim, of_claim, verdict, missing.get(name, "")))
    return results


def _findings(comparisons: Sequence[Comparison], differences: Sequence[Difference]) -> list[Finding]:
    pairs = list(zip(comparisons, differences, strict=True))
    findings = []
    for (c, d), p in zip(pairs, corrected([effect_tests(d, c.claimed, c.size) for c, d in pairs]), strict=True):
        verdict = decide(p)
        distance = distance_to_decide(d.mean, c.claimed, c.size)
        needed = seeds_needed(d, distance, len(pairs)) if verdict == "undecided" else None
        findings.append(Finding(d.mean, d.low, d.high, d.n, d.unit, p, verdict, needed))
    return findings
