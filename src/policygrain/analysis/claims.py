"""Verdicts on all claims of a study, corrected together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from .ledger import Claim, Comparison, NotFlat, compare, comparisons_planned, load_claims
from .statistics import LEVEL, Difference
from .verdicts import PValues, Verdict, combine, corrected, decide, distance_to_decide, effect_tests, seeds_needed

if TYPE_CHECKING:
    from ..results.reader import StudyResults


class Finding(NamedTuple):
    """The result of one comparison, in the comparison's unit."""

    difference: Difference  # its interval is not corrected for multiple comparisons
    p: PValues  # corrected by Holm's method over all comparisons of the ledger
    verdict: Verdict
    seeds_needed: int | None  # approximate number that would decide; None: more than 1,000, or not known

    @property
    def smaller(self) -> bool:
        """Whether the effect is shown to be smaller than the published size, with any verdict."""
        return self.p.smaller < LEVEL


class ClaimResult(NamedTuple):
    """A claim with its verdict and a finding per comparison; without findings, ``missing`` gives the reason."""

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
    def compared(self) -> list[tuple[Comparison, Finding]]:
        """The comparisons with their findings; empty where there are none."""
        return list(zip(self.claim.comparisons, self.findings, strict=False))


def decide_study(results: StudyResults) -> list[ClaimResult]:
    """Decide the claims of the package from a study's records."""
    where = f"{results.folder.path}: "  # all claims are about one study, whose folder is a temporary one in `thaw`
    decided = decide_claims(load_claims(), lambda c: compare(results, c), comparisons_planned(results.study))
    return [claim._replace(missing=claim.missing.removeprefix(where)) for claim in decided]


def decide_claims(
    claims: dict[str, Claim], compare: Callable[[Comparison], Difference], planned: int = 0
) -> list[ClaimResult]:
    """Decide every claim, with all comparisons corrected together.

    A claim has no verdict if ``compare`` raises UserError for one of its comparisons, and is undecided after NotFlat.
    ``planned``: number of comparisons; those without a difference count in the correction as p-values of 1.
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
    findings = iter(_findings(comparisons, [d for measured in differences.values() for d in measured], planned))
    results = []
    for name, claim in claims.items():
        of_claim = [next(findings) for _ in differences.get(name, [])]
        verdict = combine([f.verdict for f in of_claim]) if of_claim else not_decidable.get(name)
        results.append(ClaimResult(name, claim, of_claim, verdict, missing.get(name, "")))
    return results


def _findings(comparisons: Sequence[Comparison], differences: Sequence[Difference], planned: int) -> list[Finding]:
    pairs = list(zip(comparisons, differences, strict=True))
    tests = [effect_tests(d, c.claimed, c.size) for c, d in pairs]
    tests += [PValues(1.0, 1.0, 1.0)] * (planned - len(pairs))
    findings = []
    for (c, d), p in zip(pairs, corrected(tests), strict=False):
        verdict = decide(p)
        distance = distance_to_decide(d.mean, c.claimed, c.size)
        needed = seeds_needed(d, distance, len(tests)) if verdict == "undecided" else None
        findings.append(Finding(d, p, verdict, needed))
    return findings
