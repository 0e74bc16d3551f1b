"""How a study decides the claims: all together, by tests for planned numbers of replicates."""

from __future__ import annotations

import itertools
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
        """Whether the effect is shown to be smaller than the published size, whatever else is."""
        return self.p.smaller < LEVEL


class ClaimResult(NamedTuple):
    """A claim with its findings and verdict; there are no findings where ``missing`` says why."""

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
        """The comparison that the verdict rests on: the first of this verdict, or of those that hold the weakest."""
        if self.verdict == "holds":
            return max(range(len(self.findings)), key=lambda i: self.findings[i].p.holds)
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
    """Decide every claim. It has no verdict if ``compare`` raises a UserError for a comparison.

    It is undecided where ``compare`` says that learning curves are not flat. All comparisons are in one correction.
    """
    found: dict[str, list[Difference]] = {}
    missing: dict[str, str] = {}
    verdicts: dict[str, Verdict] = {}
    for name, claim in claims.items():
        try:
            found[name] = [compare(c) for c in claim.comparisons]
        except UserError as error:
            missing[name] = str(error)
            if isinstance(error, NotFlat):
                verdicts[name] = "undecided"
    asked = [
        Asked(name, c, d) for name, there in found.items() for c, d in zip(claims[name].comparisons, there, strict=True)
    ]
    findings = _decided(asked)
    verdicts |= _combined(asked, [f.verdict for f in findings])
    results = []
    for name, claim in claims.items():
        own = [finding for one, finding in zip(asked, findings, strict=True) if one.claim == name]
        results.append(ClaimResult(name, claim, own, verdicts.get(name), missing.get(name, "")))
    return results


def _decided(asked: Sequence[Asked]) -> list[Finding]:
    tests = corrected([effect_tests(d, c.claimed, c.size) for _, c, d in asked])
    findings = []
    for (_, c, d), p in zip(asked, tests, strict=True):
        verdict = decide(p)
        distance = distance_to_decide(d.mean, c.claimed, c.size)
        needed = seeds_needed(d, distance, len(asked)) if verdict == "undecided" else None
        findings.append(Finding(d.mean, d.low, d.high, d.n, d.unit, p, verdict, needed))
    return findings


def _combined(asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    """Claim → verdict, from those of its comparisons."""
    pairs = zip((one.claim for one in asked), verdicts, strict=True)
    return {name: combine([v for _, v in own]) for name, own in itertools.groupby(pairs, key=lambda pair: pair[0])}
