"""Claims as text and as data, for tables, the terminal and JSON, and the abstract of a study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .claims import ClaimResult, Finding
from .contrasts import Contrast, sentences
from .controls import Control, controls_status, controls_text, controls_warning
from .ledger import COSTS, LOG_RATIO, POINTS, Comparison
from .statistics import STARTS
from .verdicts import MOST_SEEDS

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


def instrument(c: Comparison) -> str:
    """The instrument that measures a comparison: full runs, estimators or one round."""
    return INSTRUMENTS.get(c.statistic, FULL_RUNS)


def comparison_text(c: Comparison, label: Callable[[str], str] = str) -> str:
    """A comparison as text, beginning with its instrument; ``label`` names arms and methods."""
    what = WHAT.get(c.statistic, c.metric.replace("_", " ") or "reward")
    what += f" after {c.updates} updates" if c.updates is not None else ""
    relation = "apart from" if c.claimed == "apart" else c.claimed
    return f"{instrument(c)}, {what}: {label(c.of)} {relation} {label(c.than)}"


def effect_text(c: Comparison, finding: Finding) -> str:
    """Effect and interval; where undecided, the approximate number of seeds or initial models that would decide."""
    values = (finding.effect, finding.low, finding.high)
    if c.unit == LOG_RATIO:
        effect, low, high = (f"{2**v:.2f}" if v < 64 else "∞" for v in values)
        shown = f"×{effect} [{low}, {high}]"
    else:
        small = c.unit == POINTS  # a hundredth of a point is nothing: no -6.6e-05
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
    """The size that an effect may be shown to be smaller than: `1.6 points`, `a factor of 0.5`; empty: none."""
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


def claims_text(decided: Sequence[ClaimResult], controls: Sequence[Control] = ()) -> str:
    """The ledger for the terminal; where a control failed, that comes first."""
    lines = [warning, ""] if (warning := controls_warning(controls)) else []
    for result in decided:
        lines += [f"{result.name}: {result.outcome}", f"  {result.claim.text}"]
        lines += [f"  {result.missing}"] if result.missing else []
        for c, finding in zip(result.claim.comparisons, result.findings, strict=False):
            over = f"over {finding.n} {finding.unit}"
            over += f", published {published_text(c)}" if c.published else ""
            lines += [f"  * {comparison_text(c)}", f"    {effect_text(c, finding)}, {over}: {finding_text(c, finding)}"]
        lines.append("")
    lines += [controls_text(controls), ""] if controls else []
    return "\n".join([*lines, counts_text(decided)])


def verdicts_text(decided: Sequence[ClaimResult]) -> str:
    """A line per claim: its verdict and the comparison that decides it."""
    lines: list[str] = []
    for result in decided:
        lines.append(f"{result.outcome}: {result.claim.text} ({result.name})")
        if result.findings:
            c, f = result.claim.comparisons[result.decisive], result.findings[result.decisive]
            lines.append(f"    {comparison_text(c)}: {effect_text(c, f)}, {f.n} {f.unit}")
    return "\n".join([*lines, counts_text(decided)])


def claims_data(decided: Sequence[ClaimResult], controls: Sequence[Control] = ()) -> list[dict[str, Any]]:
    """The ledger as JSON data: for each claim its verdict, the comparison that decides it, and all comparisons.

    `controls` in each is the status of the study's controls.
    """
    status = controls_status(controls)
    entries = []
    for result in decided:
        comparisons = [
            {
                **c.model_dump(),
                "instrument": instrument(c),
                "finding": finding_text(c, f),
                "p_corrected": f.p._asdict(),
                **_numbers(c, f),
            }
            for c, f in zip(result.claim.comparisons, result.findings, strict=False)
        ]
        if result.findings:
            numbers = _numbers(result.claim.comparisons[result.decisive], result.findings[result.decisive])
        else:
            unit = result.claim.comparisons[0].unit
            numbers = {"effect": None, "interval": None, "n": 0, "unit": None, "effect_unit": unit}
        entry = {"name": result.name, "verdict": result.outcome, "controls": status, **numbers}
        entries.append({**entry, "missing": result.missing, "comparisons": comparisons})
    return entries


def _numbers(c: Comparison, f: Finding) -> dict[str, Any]:
    """Effect and interval are in ``effect_unit``; ``n`` counts ``unit``. A number that is infinite is null."""
    effect, *interval = (v if math.isfinite(v) else None for v in (f.effect, f.low, f.high))
    numbers = {"effect": effect, "interval": interval, "n": f.n, "unit": f.unit}
    return {**numbers, "effect_unit": c.unit, "seeds_needed": f.seeds_needed}


def brief_text(
    results: StudyResults,
    decided: Sequence[ClaimResult],
    judged: Sequence[Control],
    compared: Sequence[Contrast],
    label: Callable[[str], str],
) -> str:
    """Paragraphs: a failed control, what the study compares, the claims with records, its own methods."""
    tested = [result for result in decided if result.findings]
    regimes, methods = ([c for c in compared if c.pair.whole == whole] for whole in (False, True))
    paragraphs = [
        controls_warning(judged),
        "\n".join(sentences(results, regimes, label)),
        verdicts_text(tested) if tested else "",
        "\n".join(sentences(results, methods, label)),
    ]
    return "\n\n".join(text for text in paragraphs if text)


# ---- the abstract ----------------------------------------------------------------------------------------------------


def abstract(
    results: StudyResults,
    claims: Sequence[ClaimResult],
    compared: Sequence[Contrast],
    controls: Sequence[Control],
    label: Callable[[str], str],
) -> list[str]:
    """Sentences on runs, differences in each regime, claims that hold, claims that do not, and controls."""
    holding = [_clause(r) for r in claims if r.verdict == "holds"]
    return [
        _done(results, label),
        *sentences(results, [c for c in compared if not c.pair.whole], label),
        f"Of the papers' claims, these hold here: {'; '.join(holding)}."
        if holding
        else "None of the papers' claims is shown.",
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
