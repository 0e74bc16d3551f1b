"""The words of results: comparisons, effects, verdicts, regimes and controls, and the sentences made of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ..study import Study
from ..study.comparable import Pair
from ..study.fingerprint import start_seeds
from ..text import columns
from .claims import COSTS, LOG_RATIO, POINTS, ClaimResult, Comparison, Finding, decide_study
from .contrasts import DIFFER, IDENTICAL, OPEN, Contrast, Regime, by_regime
from .controls import Control, controls
from .statistics import STARTS, Difference
from .verdicts import MOST_SEEDS

if TYPE_CHECKING:
    from ..results import StudyResults

Label = Callable[[str], str]  # the name of an arm or method in texts

# ---- claims and their comparisons ------------------------------------------------------------------------------------

FULL_RUNS, ESTIMATORS, ONE_ROUND = "full runs", "estimators", "one round"  # the instruments
INSTRUMENTS = {"estimator": ESTIMATORS, "round": ONE_ROUND}
STATISTICS = {
    "accuracy": "accuracy",
    "benchmarks": "benchmarks won minus lost",
    "drop": "largest fall of validation accuracy",
    "steps": "optimizer steps to the same accuracy",
    "tokens": "tokens to the same accuracy",
}


def comparison_text(c: Comparison, label: Label = str) -> str:
    """A comparison as text, beginning with its instrument; ``label`` names arms and methods."""
    what = STATISTICS.get(c.statistic, c.metric.replace("_", " ") or "reward")
    what += f" after {c.updates} updates" if c.updates is not None else ""
    relation = "apart from" if c.claimed == "apart" else c.claimed
    return f"{INSTRUMENTS.get(c.statistic, FULL_RUNS)}, {what}: {label(c.of)} {relation} {label(c.than)}"


def effect_text(c: Comparison, finding: Finding) -> str:
    """Effect and interval; where inconclusive, the approximate number of seeds or initial models that would decide."""
    d = finding.difference
    if math.isnan(d.mean):
        return "–"
    values = (d.mean, d.low, d.high)
    if c.unit == LOG_RATIO:
        effect, low, high = (f"{2**v:.2f}" if v < 64 else "∞" for v in values)
        shown = f"×{effect} [{low}, {high}]"
    else:
        small = c.unit == POINTS  # two decimals for small points: not -6.6e-05
        texts = (f"{v:+.2f}" if small and abs(v) < 0.1 else f"{v:+.2g}" for v in values)
        texts = ("+0.00" if text == "-0.00" else text for text in texts)
        effect, low, high = (t if math.isfinite(v) else "+-"[v < 0] + "∞" for t, v in zip(texts, values, strict=True))
        shown = f"{effect} [{low}, {high}]" + (" points" if c.unit == POINTS else "")
    if finding.verdict != "inconclusive" or d.n < 2 or c.statistic in COSTS:
        return shown
    unit = STARTS if d.unit == STARTS else "seeds"
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
    """Number of claims per verdict: `Of 10 claims: 2 holds, 8 inconclusive.`"""
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
            d = f.difference
            rows.append(
                {
                    **name,
                    **c.model_dump(),
                    "published": c.size,
                    "where": c.published.where if c.published else "",
                    "instrument": INSTRUMENTS.get(c.statistic, FULL_RUNS),
                    "comparison": comparison_text(c),
                    **{"effect": d.mean, "low": d.low, "high": d.high, "effect_unit": c.unit, "n": d.n, "unit": d.unit},
                    **{f"p_{statement}": p for statement, p in f.p._asdict().items()},
                    "seeds_needed": f.seeds_needed,
                    "finding": finding_text(c, f),
                    "verdict": result.outcome,
                }
            )
    return pd.DataFrame(rows)


def cells(result: ClaimResult, label: Label = str) -> list[list[str]]:
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
            over = f"over {f.difference.n} {f.difference.unit}" + (f", published {published}" if published else "")
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
    compared = [[f.difference for f in of_all] for of_all in itertools.chain.from_iterable(by_claim)]
    same = sum(len({math.copysign(1, d.mean) if d.mean else 0 for d in of_all}) == 1 for of_all in compared)
    overlap = sum(max(d.low for d in of_all) <= min(d.high for d in of_all) for of_all in compared)
    agreement = (
        f"Of {len(compared)} comparisons in all of these studies, decided or not: {same} have effects of one "
        f"direction, {overlap} have intervals that overlap."
    )
    return "\n".join([*lines, *columns(rows, ["claim", *names]), "", agreement])


# ---- the abstract ----------------------------------------------------------------------------------------------------


def abstract(
    results: StudyResults,
    claims: Sequence[ClaimResult],
    compared: Sequence[Contrast],
    controls: Sequence[Control],
    label: Label,
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


def _done(results: StudyResults, label: Label) -> str:
    study, ended = results.study, Counter(run.arm for run in results.summaries)
    methods = list(dict.fromkeys(label(arm.split("+")[0]) for arm in results.arms("headline")))
    seeds = sorted({*ended.values()} or {0})
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"{_listed(methods)} and variants of them were trained in {ended.total()} runs, {many} seeds each; runs of "
        f"one seed share their initial model, prompts and sampling seeds ({study.title or study.name})."
    )


def against_text(claims: Sequence[ClaimResult]) -> str:
    """One sentence on the claims whose opposite is shown, or that are smaller than published."""
    open_ = sum(r.verdict in ("inconclusive", None) for r in claims)
    rest = f"{open_} of {len(claims)} stay inconclusive or have no records here"
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
    only_worse = failed == ["worse"]
    doubt = "differences that are not shown may still exist" if only_worse else "none of this can be trusted yet"
    summary = (
        f"Sanity checks failed ({', '.join(failed)}), so {doubt}"
        if failed
        else f"No sanity check failed, and the seeds are too few for {', '.join(unclear)}"
        if unclear
        else f"All {len(controls)} sanity checks passed"
        if controls
        else "The study has no sanity checks"
    )
    return (
        f"{summary}; intervals are over training seeds and initial models; a replication outside of them would "
        "contradict a finding, and the results do not extend to larger models or other problems."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names) or "Methods"


# ---- regimes --------------------------------------------------------------------------------------------------------


def nothing_text(study: Study, compared: Sequence[Contrast]) -> str:
    """The sentence of a regime in which no comparison is decided (rule 3 of docs/design.md)."""
    no_ratio = [{arm.method(study).ratio.name == "none" for arm in (c.pair.arm, c.pair.reference)} for c in compared]
    even = ", not even leaving the ratio out" if {True, False} in no_ratio else ""
    return f"Nothing is shown to matter here{even}, so ties are no evidence that methods are equal."


def regime_text(regime: Regime) -> str:
    """`rollouts 48 steps old, learning rate 0.0002`; `on-policy` for rollouts of age 0."""
    words = {"off_policy_steps": lambda v: f"rollouts {_steps(v)} old" if v else "on-policy"}
    parts = [words.get(key, lambda v, key=key: f"{key.replace('_', ' ')} {v}")(value) for key, value in regime]
    return ", ".join(parts) or "the study's settings"


def pair_text(study: Study, pair: Pair, label: Label) -> str:
    """`token, clipped − no ratio`; where only the age of rollouts differs, `no ratio: 48 steps old − on-policy`."""
    one, other = pair.arm, pair.reference
    if one.method_name != other.method_name:
        return f"{label(one.method_name)} − {label(other.method_name)}"
    return f"{label(one.method_name)}: {_steps(one.training(study).off_policy_steps)} old − on-policy"


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def points_text(effect: Difference | None) -> str:
    """`+4.1 [+2.0, +6.2]`; empty for None."""
    return "" if effect is None else f"{effect.mean:+.1f} [{effect.low:+.1f}, {effect.high:+.1f}]"


def sentences(results: StudyResults, compared: Sequence[Contrast], label: Label = str) -> list[str]:
    """One sentence per regime, then one per comparison of whole methods."""
    regimes = [
        _regime_sentence(results.study, regime, group, label)
        for regime, group in by_regime(results.study, compared).items()
    ]
    return regimes + [_own_sentence(results.study, c, label) for c in compared if c.pair.whole]


def _regime_sentence(study: Study, regime: Regime, compared: Sequence[Contrast], label: Label) -> str:
    start = regime_text(regime)
    start = start[0].upper() + start[1:]
    training = compared[0].pair.arm.training(study)
    on_policy = not training.off_policy_steps and training.updates_of_batch == 1
    if not (on_policy or any(c.decided for c in compared)):
        nothing = nothing_text(study, compared)
        return f"{start}: {nothing[0].lower()}{nothing[1:]}"
    parts = []
    for outcome in dict.fromkeys(c.outcome for c in sorted(compared, key=lambda c: c.p)):
        chosen = [c for c in compared if c.outcome == outcome]
        names = [pair_text(study, c.pair, label) for c in chosen]
        if outcome == IDENTICAL:
            finals = [abs(d.mean) for c in chosen for d in (c.sampled, c.greedy) if d is not None]
            apart = f" (final accuracy differs by at most {max(finals):.1f} points)" if any(finals) else ""
            parts.append(
                f"Equal validation accuracies{', since every ratio is 1' * on_policy}{apart}: {'; '.join(names)}"
            )
        elif outcome == DIFFER:
            effects = [f"{points_text(c.area)}{' (endpoints disagree)' * c.disagreement}" for c in chosen]
            parts.append("; ".join(f"{name} {effect}" for name, effect in zip(names, effects, strict=True)))
        else:
            means = sorted(c.area.mean for c in chosen)
            between = f"{means[0]:+.1f} to {means[-1]:+.1f}" if len(means) > 1 else f"{means[0]:+.1f}"
            parts.append(f"{outcome[0].upper()}{outcome[1:]} ({between}): {'; '.join(names)}")
    return f"{start}: {'. '.join(parts)}."


def _own_sentence(study: Study, c: Contrast, label: Label) -> str:
    n, unit = c.area.n, c.area.unit
    endpoints = {"mean validation accuracy": c.area, "final accuracy": c.sampled}
    shown = [
        f"{points_text(d) if d.n > 1 else f'{d.mean:+.1f}'} points of {name}{f' ({d.n} {d.unit})' * (d.n != n)}"
        for name, d in endpoints.items()
        if d is not None
    ]
    over = (
        f"over {n} {unit}: {'equal validation accuracies' if c.identical else c.outcome if c.decided else OPEN}"
        if n > 1
        else f"one {unit[:-1]}, so there is no interval"
    )
    return f"{pair_text(study, c.pair, label)}: {', '.join(shown)}, {over}."


# ---- controls -------------------------------------------------------------------------------------------------------

CHANGE = "largest change of validation accuracy"


def controls_status(controls: Sequence[Control]) -> str:
    """`passed`, `failed: ROLES`, `inconclusive: ROLES`, or `none` for a study without controls."""
    for outcome in ("failed", "inconclusive"):
        if roles := [control.role for control in controls if control.outcome == outcome]:
            return f"{outcome}: {', '.join(roles)}"
    return "passed" if controls else "none"


def controls_warning(controls: Sequence[Control]) -> str:
    """The warning at the top of every output of claims if a control failed; else empty."""
    failed = [c for c in controls if c.outcome == "failed"]
    if [c.role for c in failed if c.difference] == ["worse"] == [c.role for c in failed]:
        return (
            "This study does not show that a method which was made worse on purpose is worse (sanity check: worse), so "
            "a difference that it does not show may still exist. It may have too few steps or seeds."
        )
    texts = "; ".join(f"{c.role} ({c.expected}; measured: {c.result})" for c in failed)
    return (
        texts and f"A sanity check of this study failed: {texts}. Until that is explained, do not rely on its verdicts."
    )


def controls_text(controls: Sequence[Control]) -> str:
    """The controls for the terminal."""
    lines = []
    for c in controls:
        outcome = c.outcome.upper() if c.outcome == "failed" else c.outcome
        lines.append(f"sanity check {c.role}: {outcome} ({c.expected}: {c.result})")
        if d := c.difference:
            what = CHANGE if c.role == "zero_learning_rate" else f"[{d.low:+.2g}, {d.high:+.2g}]"
            lines.append(f"  {c.arms}: {d.mean:+.2g} points, {what}, over {d.n} {d.unit}")
    return "\n".join(lines)
