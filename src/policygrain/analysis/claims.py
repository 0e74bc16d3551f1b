"""Verdicts on all claims of a study, corrected together; the ledger as a table, as text and as an abstract."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from ..errors import UserError
from ..study.fingerprint import start_seeds
from ..text import columns
from .contrasts import Contrast, sentences
from .controls import Control, controls, controls_text, controls_warning
from .ledger import COSTS, LOG_RATIO, POINTS, Claim, Comparison, NotFlat, compare, load_claims
from .statistics import LEVEL, STARTS, Difference
from .verdicts import (
    MOST_SEEDS,
    PValues,
    Verdict,
    combine,
    corrected,
    decide,
    distance_to_decide,
    effect_tests,
    seeds_needed,
)

if TYPE_CHECKING:
    from ..results.reader import StudyResults

FULL_RUNS, ESTIMATORS, ONE_ROUND = "full runs", "estimators", "one round"  # the instruments
INSTRUMENTS = {"estimator": ESTIMATORS, "round": ONE_ROUND}
WHAT = {
    "accuracy": "accuracy",
    "benchmarks": "benchmarks won minus lost",
    "drop": "largest fall of validation accuracy",
    "steps": "optimizer steps to the same accuracy",
    "tokens": "tokens to the same accuracy",
}


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
    decided = decide_claims(load_claims(), lambda c: compare(results, c))
    return [claim._replace(missing=claim.missing.removeprefix(where)) for claim in decided]


def decide_claims(claims: dict[str, Claim], compare: Callable[[Comparison], Difference]) -> list[ClaimResult]:
    """Decide every claim, with all comparisons corrected together.

    A claim has no verdict if ``compare`` raises UserError for one of its comparisons, and is undecided after NotFlat.
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


# ---- words ----------------------------------------------------------------------------------------------------------


def comparison_text(c: Comparison, label: Callable[[str], str] = str) -> str:
    """A comparison as text, beginning with its instrument; ``label`` names arms and methods."""
    what = WHAT.get(c.statistic, c.metric.replace("_", " ") or "reward")
    what += f" after {c.updates} updates" if c.updates is not None else ""
    relation = "apart from" if c.claimed == "apart" else c.claimed
    return f"{INSTRUMENTS.get(c.statistic, FULL_RUNS)}, {what}: {label(c.of)} {relation} {label(c.than)}"


def effect_text(c: Comparison, finding: Finding) -> str:
    """Effect and interval; where undecided, the approximate number of seeds or initial models that would decide."""
    values = (finding.effect, finding.low, finding.high)
    if c.unit == LOG_RATIO:
        effect, low, high = (f"{2**v:.2f}" if v < 64 else "∞" for v in values)
        shown = f"×{effect} [{low}, {high}]"
    else:
        small = c.unit == POINTS  # two decimals for small points: not -6.6e-05
        texts = (f"{v:+.2f}" if small and abs(v) < 0.1 else f"{v:+.2g}" for v in values)
        texts = ("+0.00" if text == "-0.00" else text for text in texts)
        effect, low, high = (t if math.isfinite(v) else "+-"[v < 0] + "∞" for t, v in zip(texts, values, strict=True))
        shown = f"{effect} [{low}, {high}]" + (" points" if c.unit == POINTS else "")
    if finding.verdict != "undecided" or finding.n < 2 or c.statistic in COSTS:
        return shown
    unit = STARTS if finding.unit == STARTS else "seeds"
    if needed := finding.seeds_needed:
        return f"{shown}; about {needed} {unit} would decide"
    return f"{shown}; over {MOST_SEEDS:,} {unit} would be needed"


def size_text(c: Comparison) -> str:
    """The published size in words: `1.6 points`, `a factor of 0.5`; empty if there is none."""
    if c.size is None:
        return ""
    if c.unit == LOG_RATIO:
        return f"a factor of {2 ** (-c.size if c.claimed == 'below' else c.size):.2g}"
    return f"{c.size:g} {c.unit}"


def published_text(c: Comparison) -> str:
    """The published size and its place in the paper; empty where the paper gives none."""
    return f"{size_text(c)} ({c.published.where})" if c.published else ""


def finding_text(c: Comparison, finding: Finding) -> str:
    """The verdict on a comparison: `holds`, `holds, smaller than 1.6 points`, `smaller than 1.6 points`, …."""
    smaller = f"smaller than {size_text(c)}"
    if finding.verdict == "smaller than published":
        return smaller
    return f"holds, {smaller}" if finding.verdict == "holds" and finding.smaller else finding.verdict


def counts_text(decided: Sequence[ClaimResult]) -> str:
    """Number of claims per verdict: `Of 10 claims: 2 supported, 8 undecided.`"""
    counts = Counter(result.outcome for result in decided)
    return f"Of {len(decided)} claims: {', '.join(f'{n} {verdict}' for verdict, n in counts.most_common())}."


# ---- the ledger as a table and as text -------------------------------------------------------------------------------


def ledger(decided: Sequence[ClaimResult]) -> pd.DataFrame:
    """A row per comparison, in the comparison's unit; of a claim without findings one row with the reason."""
    rows: list[dict[str, object]] = []
    for result in decided:
        name = {"claim": result.name, "source": result.claim.source}
        if not result.findings:
            rows.append({**name, "verdict": result.outcome, "missing": result.missing})
        for c, f in result.compared:
            rows.append(
                {
                    **name,
                    **c.model_dump(),
                    "published": c.size,
                    "where": c.published.where if c.published else "",
                    "instrument": INSTRUMENTS.get(c.statistic, FULL_RUNS),
                    "comparison": comparison_text(c),
                    **{name: getattr(f, name) for name in ("effect", "low", "high")},
                    **{"effect_unit": c.unit, "n": f.n, "unit": f.unit},
                    **{f"p_{statement}": p for statement, p in f.p._asdict().items()},
                    "seeds_needed": f.seeds_needed,
                    "finding": finding_text(c, f),
                    "verdict": result.outcome,
                }
            )
    return pd.DataFrame(rows)


def cells(result: ClaimResult, label: Callable[[str], str] = str) -> list[list[str]]:
    """A row per comparison: comparison, effect, published size and finding in words; without findings, the reason."""
    if not result.findings:
        return [["", result.missing, "", ""]]
    return [
        [comparison_text(c, label), effect_text(c, f), published_text(c), finding_text(c, f)]
        for c, f in result.compared
    ]


def claims_text(decided: Sequence[ClaimResult], controls: Sequence[Control] = ()) -> str:
    """The ledger for the terminal; if a control failed, it begins with a warning."""
    lines = [warning, ""] if (warning := controls_warning(controls)) else []
    for result in decided:
        lines += [f"{result.name}: {result.outcome}", f"  {result.claim.text}"]
        lines += [f"  {result.missing}"] if result.missing else []
        for f, (comparison, effect, published, finding) in zip(result.findings, cells(result), strict=False):
            over = f"over {f.n} {f.unit}" + (f", published {published}" if published else "")
            lines += [f"  * {comparison}", f"    {effect}, {over}: {finding}"]
        lines.append("")
    lines += [controls_text(controls), ""] if controls else []
    return "\n".join([*lines, counts_text(decided)])


def side_by_side(studies: Sequence[StudyResults]) -> str:
    """The verdicts of several studies as a table, with the number of comparisons whose effects or intervals agree.

    A warning says which seeds of training runs or initial models the studies share: such studies are not independent.
    """
    names = [str(results.folder.path) for results in studies]
    warnings = [(name, controls_warning(controls(results))) for name, results in zip(names, studies, strict=True)]
    lines = [f"{name}: {warning}" for name, warning in warnings if warning]
    seeds = Counter(s for r in studies for s in {run.seed for run in r.matrix.runs} | set(start_seeds(r.study)))
    if shared := sorted(seed for seed, count in seeds.items() if count > 1):
        lines.append(
            f"Seeds in more than one of these studies: {', '.join(map(str, shared))}. The studies are not independent, "
            "and claims that agree are not replicated."
        )
    ledgers = [decide_study(results) for results in studies]
    rows = [[of_claim[0].name, *(result.outcome for result in of_claim)] for of_claim in zip(*ledgers, strict=True)]
    by_claim = [zip(*(result.findings for result in of_claim), strict=False) for of_claim in zip(*ledgers, strict=True)]
    findings = list(itertools.chain.from_iterable(by_claim))
    same = sum(len({math.copysign(1, f.effect) if f.effect else 0 for f in of_all}) == 1 for of_all in findings)
    overlap = sum(max(f.low for f in of_all) <= min(f.high for f in of_all) for of_all in findings)
    agreement = (
        f"Of {len(findings)} comparisons in all of these studies, decided or not: {same} have effects of one "
        f"direction, {overlap} have intervals that overlap."
    )
    return "\n".join([*lines, *columns(rows, ["claim", *names]), "", agreement])


# ---- the abstract ----------------------------------------------------------------------------------------------------


def abstract(
    results: StudyResults,
    claims: Sequence[ClaimResult],
    compared: Sequence[Contrast],
    controls: Sequence[Control],
    label: Callable[[str], str],
) -> list[str]:
    """Sentences on the study's own methods, runs, regimes, claims that hold, claims that do not, and controls."""
    holding = [_clause(r) for r in claims if r.verdict == "holds"]
    return [
        *sentences(results, [c for c in compared if c.pair.whole], label),
        _done(results, label),
        *sentences(results, [c for c in compared if not c.pair.whole], label),
        f"Of the papers' claims, these hold here: {'; '.join(holding)}."
        if holding
        else "None of the papers' claims is shown to hold.",
        against_text(claims),
        _rests_on(controls),
    ]


def _done(results: StudyResults, label: Callable[[str], str]) -> str:
    study, matrix = results.study, results.matrix
    methods = list(dict.fromkeys(label(arm.split("+")[0]) for arm in results.arms("headline")))
    seeds = sorted({len(runs) for runs in matrix.by_arm().values()})
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"{_listed(methods)} and variants of them were trained in {len(matrix.runs)} runs, {many} seeds each; runs of "
        f"one seed share their initial model, prompts and sampling seeds ({study.title or study.name})."
    )


def against_text(claims: Sequence[ClaimResult]) -> str:
    """One sentence on the claims whose opposite is shown, or that are smaller than published."""
    open_ = sum(r.verdict in ("undecided", None) for r in claims)
    rest = f"{open_} of {len(claims)} stay undecided or have no records here"
    texts = [
        f"{begin}: {'; '.join(clauses)}"
        for begin, verdict in (
            ("the opposite is shown of these", "opposite"),
            ("these are smaller than published", "smaller than published"),
        )
        if (clauses := [_clause(r) for r in claims if r.verdict == verdict])
    ]
    return f"Of the papers' claims {'; '.join(texts or ['none is shown to be wrong'])}; {rest}."


def _clause(result: ClaimResult) -> str:
    """The text of a claim as a part of a sentence."""
    text = result.claim.text.rstrip(".")
    return text[0].lower() + text[1:] if text.startswith(("The ", "Of ")) else text


def _rests_on(controls: Sequence[Control]) -> str:
    failed, unclear = ([c.role for c in controls if c.outcome == outcome] for outcome in ("failed", "inconclusive"))
    summary = (
        f"Controls failed ({', '.join(failed)}), so none of this can be trusted yet"
        if failed
        else f"No control failed, and the seeds are too few for {', '.join(unclear)}"
        if unclear
        else f"All {len(controls)} controls passed"
        if controls
        else "The study has no controls"
    )
    return (
        f"{summary}; intervals are over training seeds and initial models; a replication outside of them would "
        "contradict a finding, and the results do not extend to larger models or other problems."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names) or "Methods"
