"""How a study decides the claims: all together, by tests for planned numbers of replicates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from .comparisons import compare
from .ledger import Claim, Comparison, load_claims
from .statistics import Difference
from .verdicts import PValues, Verdict, combine, corrected, decide, margin_tests, seeds_needed

if TYPE_CHECKING:
    from ..results.reader import StudyResults


class Finding(NamedTuple):
    """The result of one comparison; effect and interval are in the unit of its margin."""

    effect: float
    low: float  # 95% interval, not corrected for multiple comparisons
    high: float
    n: int
    unit: str  # of replication
    p: PValues  # corrected by Holm's method over all comparisons of the ledger
    verdict: Verdict
    seeds_needed: int | None  # approximate number that would decide; None: more than 1,000, or not known


class ClaimResult(NamedTuple):
    """A claim with its findings and verdict; both are empty where ``missing`` says why."""

    name: str
    claim: Claim
    findings: list[Finding]
    verdict: Verdict | None
    missing: str = ""

    @property
    def outcome(self) -> str:
        """The verdict, or why there is none."""
        return self.verdict or ("undecided, comparison withdrawn" if self.claim.withdrawn else "no records")

    @property
    def decisive(self) -> int:
        """The comparison that the verdict rests on: the first of this verdict, or of those that hold the weakest."""
        if self.verdict == "supported":
            return max(range(len(self.findings)), key=lambda i: self.findings[i].p.supports)
        return next(i for i, finding in enumerate(self.findings) if finding.verdict == self.verdict)


class Asked(NamedTuple):
    """A comparison of a claim, with the difference that was found."""

    claim: str
    comparison: Comparison
    difference: Difference


def decide_study(results: StudyResults) -> list[ClaimResult]:
    """Decide the claims of the package from a study's records."""
    return decide_claims(load_claims(), lambda c: compare(results, c))


def decide_claims(claims: dict[str, Claim], compare: Callable[[Comparison], Difference]) -> list[ClaimResult]:
    """Decide every claim that is not withdrawn. It has no verdict if ``compare`` raises a UserError for a comparison.

    All comparisons are in one correction.
    """
    found: dict[str, list[Difference]] = {}
    missing: dict[str, str] = {}
    for name, claim in claims.items():
        if claim.withdrawn:
            missing[name] = claim.withdrawn
            continue
        try:
            found[name] = [compare(c) for c in claim.comparisons]
        except UserError as error:
            missing[name] = str(error)
    asked = [
        Asked(name, c, d) for name, there in found.items() for c, d in zip(claims[name].comparisons, there, strict=True)
    ]
    findings, verdicts = _decided(asked)
    results = []
    for name, claim in claims.items():
        own = [finding for one, finding in zip(asked, findings, strict=True) if one.claim == name]
        results.append(ClaimResult(name, claim, own, verdicts.get(name), missing.get(name, "")))
    return results


def _decided(asked: Sequence[Asked]) -> tuple[list[Finding], dict[str, Verdict]]:
    """By tests for a planned number of replicates."""
    tests = corrected([margin_tests(d, c.claimed, c.margin) for _, c, d in asked])
    findings = [
        _finding(d, p, decide(p), (d.low, d.high), seeds_needed(d, c.claimed, c.margin, len(asked)))
        for (_, c, d), p in zip(asked, tests, strict=True)
    ]
    return findings, _combined(asked, [f.verdict for f in findings])


def _combined(asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    """Claim → verdict, from those of its comparisons."""
    pairs = zip((one.claim for one in asked), verdicts, strict=True)
    return {name: combine([v for _, v in own]) for name, own in itertools.groupby(pairs, key=lambda pair: pair[0])}


def _finding(d: Difference, p: PValues, verdict: Verdict, ends: tuple[float, float], needed: int | None) -> Finding:
    return Finding(d.mean, *ends, d.n, d.unit, p, verdict, needed if verdict == "undecided" else None)
