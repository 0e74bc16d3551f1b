"""How a study decides the claims: all together, by tests for planned numbers and for seeds that are added."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import UserError
from .comparisons import compare
from .ledger import Claim, Comparison, load_claims
from .sequential import Evidence, Planned, sequential_seeds_needed, settle
from .statistics import STARTS, Difference
from .verdicts import PValues, Verdict, combine, corrected, decide, margin_tests, seeds_needed

if TYPE_CHECKING:
    from ..results.reader import StudyResults

Design = Literal["fixed", "sequential"]
Added = Sequence[Mapping[str, Sequence[int]]]  # per interim analysis: arm → seeds that it added


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


def decide_study(results: StudyResults, design: Design | None = None) -> list[ClaimResult]:
    """Decide the claims of the package from a study's records.

    ``design``: by default the study's own: sequential where it adds seeds (`sequential`), else fixed.
    """
    chosen = design or ("sequential" if results.study.sequential else "fixed")
    added = [interim.add for interim in results.interims]
    return decide_claims(load_claims(), lambda c: compare(results, c), chosen, added)


def decide_claims(
    claims: dict[str, Claim], compare: Callable[[Comparison], Difference], design: Design = "fixed", added: Added = ()
) -> list[ClaimResult]:
    """Decide every claim that is not withdrawn. It has no verdict if ``compare`` raises a UserError for a comparison.

    ``design``: `fixed` for numbers of seeds that were planned beforehand; `sequential` where seeds are added until
    there is a verdict, which needs them in the order in which they were added. Start models are always tested by their
    planned number. All comparisons are in one correction. ``added``: the seeds that each interim analysis added.
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
    findings, verdicts = _fixed(asked) if design == "fixed" else _sequential(asked, added)
    results = []
    for name, claim in claims.items():
        own = [finding for one, finding in zip(asked, findings, strict=True) if one.claim == name]
        results.append(ClaimResult(name, claim, own, verdicts.get(name), missing.get(name, "")))
    return results


def _fixed(asked: Sequence[Asked]) -> tuple[list[Finding], dict[str, Verdict]]:
    """By tests for a planned number of replicates."""
    tests = corrected([margin_tests(d, c.claimed, c.margin) for _, c, d in asked])
    findings = [
        _finding(d, p, decide(p), (d.low, d.high), seeds_needed(d, c.claimed, c.margin, len(asked)))
        for (_, c, d), p in zip(asked, tests, strict=True)
    ]
    return findings, _combined(asked, [f.verdict for f in findings])


def _sequential(asked: Sequence[Asked], added: Added) -> tuple[list[Finding], dict[str, Verdict]]:
    """By the order of seeds: after each one, verdicts are recorded. What was recorded is never taken back."""
    ledger: list[Evidence | Planned] = []
    for _, c, d in asked:
        fixed = d.unit == STARTS
        ledger.append(Planned(margin_tests(d, c.claimed, c.margin)) if fixed else Evidence(c.claimed, c.margin))
    recorded: dict[str, Verdict] = {}
    for values in _in_order(asked, added):
        for i, value in values.items():
            if isinstance(evidence := ledger[i], Evidence):
                evidence.append([value])
        settle(ledger)
        now = _combined(asked, [e.verdict for e in ledger])
        recorded |= {name: v for name, v in now.items() if recorded.get(name, "undecided") == "undecided"}
    findings = []
    for (_, c, d), evidence, p in zip(asked, ledger, corrected([e.p_values() for e in ledger]), strict=True):
        planned = isinstance(evidence, Planned)
        needed = (seeds_needed if planned else sequential_seeds_needed)(d, c.claimed, c.margin, len(asked))
        findings.append(_finding(d, p, evidence.verdict, (d.low, d.high), needed))
    return findings, recorded


def _in_order(asked: Sequence[Asked], added: Added) -> list[dict[int, float]]:
    """Position in ``asked`` → value, of all seeds that became known at a time; first what is known without seeds.

    The seeds of one interim analysis come before those of the next in all comparisons: a later seed changes nothing
    about what was seen before it.
    """
    rounds: list[dict[int, list[float]]] = [{} for _ in range(len(added) + 1)]
    for i, (_, c, d) in enumerate(asked):
        if d.unit != STARTS:
            seeds = d.seeds or range(len(d.values))
            for seed, value in zip(seeds, d.values, strict=True):
                rounds[_round_of(seed, c, added)].setdefault(i, []).append(value)
    steps: list[dict[int, float]] = [{}]
    for values in rounds:
        for k in range(max(map(len, values.values()), default=0)):
            steps.append({i: own[k] for i, own in values.items() if k < len(own)})
    return steps


def _round_of(seed: int, c: Comparison, added: Added) -> int:
    """The number of the interim analysis after which both arms have this seed, from 1; 0: it was planned."""
    return max((n for n, add in enumerate(added, 1) for arm in (c.of, c.than) if seed in add.get(arm, ())), default=0)


def _combined(asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    """Claim → verdict, from those of its comparisons."""
    pairs = zip((one.claim for one in asked), verdicts, strict=True)
    return {name: combine([v for _, v in own]) for name, own in itertools.groupby(pairs, key=lambda pair: pair[0])}


def _finding(d: Difference, p: PValues, verdict: Verdict, ends: tuple[float, float], needed: int | None) -> Finding:
    return Finding(d.mean, *ends, d.n, d.unit, p, verdict, needed if verdict == "undecided" else None)
