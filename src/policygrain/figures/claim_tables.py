"""The tables of claims, and of the methods that a study compares, regime by regime."""

from __future__ import annotations

import pandas as pd

from ..analysis.claims import cells, counts_text, decide_study, ledger
from ..analysis.contrasts import (
    DIFFER,
    IDENTICAL,
    OPEN,
    Contrast,
    by_regime,
    contrasts,
    effect_text,
    nothing_text,
    pair_text,
    regime_text,
    sentences,
)
from ..analysis.controls import controls, controls_text, controls_warning
from ..analysis.ledger import excluded_claims
from ..analysis.statistics import SEEDS
from ..results.reader import StudyResults
from ..text import markdown_table
from .labels import labels

UNDECIDED = "### Undecided claims"  # the heading of their table
CLAIMS = ["claim", "comparison", "effect", "published", "finding", "verdict"]


def claims(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per comparison, and the table of all claims as Markdown; if a control failed, that comes first."""
    decided, judged = decide_study(results), controls(results)
    label = labels(results.study)
    units = sorted({(f.unit != SEEDS, f.n, f.unit) for claim in decided for f in claim.findings})
    over = " or ".join(f"{n} {unit}" for _, n, unit in units) or "no seeds"
    added = (
        " Seeds were added to arms of claims that were undecided, so that tests decide somewhat too often."
        if results.added
        else ""
    )
    note = (
        f"\n{counts_text(decided)} Each comparison is tested against 0, in the claimed direction and in the opposite "
        f"one, and against the published size where the paper gives one, over {over}, paired, and corrected by Holm's "
        f"method over all comparisons.{added} Intervals are 95%, not corrected. A claim holds if all its comparisons "
        "do; one that is opposite or smaller than published is enough against it. These results are for "
        f"{results.study.title or results.study.name} and do not decide the claims for other models.\n"
    )
    # Markdown: decided claims first; the others after a heading of their own, by which the report folds them.
    groups: dict[bool, list[list[str]]] = {True: [], False: []}
    for r in decided:
        text = f"{r.claim.text} ({r.claim.source})" + (f" *{r.claim.reading}*" if r.claim.reading else "")
        ends = [(text, f"**{r.outcome}**" if r.findings else r.outcome)] + [("", "")] * len(r.findings)
        rows = [[first, *row, last] for (first, last), row in zip(ends, cells(r, label), strict=False)]
        groups[r.verdict not in ("undecided", None)] += rows
    first = markdown_table(CLAIMS, groups[True]) if groups[True] else "No claim is decided.\n"
    others = f"\n{UNDECIDED}\n\n{markdown_table(CLAIMS, groups[False])}" if groups[False] else ""
    warning = f"**{text}**\n\n" if (text := controls_warning(judged)) else ""
    shown = f"\n```\n{controls_text(judged)}\n```\n" if judged else ""
    excluded = [[f"{c.text} ({c.source})", c.excluded] for c in excluded_claims().values()]
    others += f"\n### Claims that are not tested\n\n{markdown_table(['claim', 'why'], excluded)}"
    return ledger(decided), warning + first + note + shown + others


# ---- findings -------------------------------------------------------------------------------------------------------

FINDINGS = ["regime", "comparison", "area", "final, sampled", "final, greedy", "p, corrected", "finding"]


def findings(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A sentence per regime and a row per comparison; if a control failed, that comes first."""
    effects, label = contrasts(results), labels(results.study)
    parts = [f"**{text}**"] if (text := controls_warning(controls(results))) else []
    if not effects:
        return pd.DataFrame(columns=["of", "than"]), "\n\n".join([*parts, "This study compares no methods.\n"])
    parts.append("\n".join(f"* {sentence}" for sentence in sentences(results, effects, label)))
    cells = []
    regimes = [(regime_text(regime), group) for regime, group in by_regime(results.study, effects).items()]
    for name, group in [*regimes, ("whole methods", [c for c in effects if c.pair.whole])]:
        sensitive = any(c.decided for c in group)
        for i, c in enumerate(group):
            shown = [effect_text(d) for d in (c.area, c.sampled, c.greedy)]
            finding = _finding(c, sensitive) + "; endpoints disagree" * c.disagreement
            row = [pair_text(results.study, c.pair, label), *shown, f"{c.p:.2g}", finding]
            cells.append(["" if i else name, *row])
        if not (sensitive or all(c.identical or c.pair.whole for c in group)):
            cells.append(["", nothing_text(results.study, group), "", "", "", "", ""])
    seeds = sorted({c.area.n for c in effects})
    over = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    note = (
        f"Points, paired over {over} {effects[0].area.unit}, 95% intervals, not corrected. The primary endpoint is the "
        "area under the curve of validation accuracy; p is of no difference in it, corrected by Holm's method over "
        f"all {sum(not c.identical for c in effects)} comparisons that are not identical.\n"
    )
    parts.append(f"{markdown_table(FINDINGS, cells)}\n{note}")
    return pd.DataFrame([_finding_row(c) for c in effects]), "\n\n".join(parts)


def _finding(c: Contrast, sensitive: bool) -> str:
    """The outcome; that a difference is small counts only where something is shown to make a difference (rule 3)."""
    return c.outcome if sensitive or c.outcome in (DIFFER, IDENTICAL) else OPEN


def _finding_row(c: Contrast) -> dict[str, object]:
    """A contrast in the CSV file."""
    row: dict[str, object] = {"experiment": c.pair.experiment, "of": c.pair.arm.name, "than": c.pair.reference.name}
    for endpoint, difference in (("area", c.area), ("sampled", c.sampled), ("greedy", c.greedy)):
        if difference is not None:
            row |= {f"{endpoint}_{key}": value for key, value in difference.numbers().items()}
    return row | {"p_corrected": c.p, "finding": c.outcome}
