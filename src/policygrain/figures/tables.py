"""The tables: accuracy by benchmark and by the parts of methods (after TEPO's tables 1 and 2), findings and claims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..analysis import Estimate, accuracy, measures
from ..analysis.claims import decide_study, excluded_claims
from ..analysis.contrasts import (
    DIFFER,
    IDENTICAL,
    OPEN,
    Contrast,
    by_regime,
    contrasts,
)
from ..analysis.controls import controls
from ..analysis.statistics import SEEDS
from ..analysis.verdicts import holm
from ..analysis.wording import (
    cells,
    controls_text,
    controls_warning,
    counts_text,
    ledger,
    nothing_text,
    pair_text,
    points_text,
    regime_text,
    sentences,
)
from ..data.registry import sampling_of
from ..errors import UserError
from ..paths import START
from ..results import StudyResults
from ..study import comparable
from ..text import markdown_table
from . import catalogue
from .labels import labels, name_of

ENDS = ("mean", "low", "high")
OTHER_SAMPLER = " \\*"
GREEDY = "greedy_"  # before the names of columns


def results(records: StudyResults) -> tuple[pd.DataFrame, str]:
    """The numbers, and the tables as Markdown. The best arm is bold only if it is better than every other."""
    evaluated = [name for name, e in records.study.experiments.items() if e.evaluate]
    arms = [START, *dict.fromkeys(arm for name in evaluated for arm in records.arms(name))]
    names = records.benchmarks
    contaminated = {b: len(records.contaminated(b)) for b in names if records.contaminated(b)}
    rows = []
    for arm in arms:
        scores = [records.scores(arm, b) for b in names]
        rows += [_row(records, arm, b, [one]) for b, one in zip(names, scores, strict=True)]
        rows.append(_row(records, arm, "average", scores))
    for b, arm in itertools.product(contaminated, arms):
        clean = records.scores(arm, b, clean=True)
        rows += [_row(records, arm, f"{b}, clean", [clean])] if clean.size else []
    frame = pd.DataFrame(rows)
    units = " or ".join(dict.fromkeys(frame["unit"]))
    columns = {b: b for b in [*names, "average"]}
    best = {b: _best(records, arms, b) for b in names}
    texts = [
        _cells(records, frame, arms, "method", columns, best=best),
        f"\nAccuracy of {_responses(records)} in percent, with 95% intervals over {units}. "
        "Bold: better than every other arm, with all intervals of paired differences above zero.\n",
    ]
    if frame["n"].nunique() > 1:
        texts.append("\nRows with another n have other seeds: compare their methods by paired differences alone.\n")
    there = set(frame["benchmark"])
    columns_clean = {f"{b}, clean": f"{b} (−{n})" for b, n in contaminated.items() if f"{b}, clean" in there}
    if columns_clean:
        texts += ["\n", _cells(records, frame, arms, "without problems of the training set", columns_clean)]
    texts.append(_pairs(records))
    if (greedy := _greedy_columns(records, arms)) is not None:
        frame = frame.merge(greedy, on=["arm", "benchmark"], how="left")
        texts += [
            f"\n{_cells(records, frame, arms, 'method', columns, GREEDY)}",
            "\nThe same for one greedily decoded response per problem, in percent. Training maximises the "
            "accuracy of sampled responses, which the table above and the claims are about.\n",
        ]
    return frame, "".join(texts)


def _row(records: StudyResults, arm: str, benchmark: str, scores: Sequence[Any]) -> dict[str, object]:
    estimate = accuracy(scores, measures.unit_of(records.study))
    return {"arm": arm, "benchmark": benchmark, **_percent(estimate), "n": estimate.n, "unit": estimate.unit}


def _percent(estimate: Estimate) -> dict[str, float]:
    return {name: round(100 * getattr(estimate, name), 6) for name in ENDS}


def _cells(
    records: StudyResults,
    frame: pd.DataFrame,
    arms: Sequence[str],
    corner: str,
    columns: Mapping[str, str],
    prefix: str = "",
    best: Mapping[str, str | None] | None = None,
) -> str:
    """A table with a row per arm and a column per benchmark (``columns``: name in ``frame`` → header).

    ``best``: benchmark → the arm in bold. A column `n`, the number of units of the intervals, is added if arms differ.
    """
    by_cell = {(row["arm"], row["benchmark"]): row for row in frame.to_dict("records")}
    lines = []
    counts = {arm: by_cell[arm, next(iter(columns))]["n"] for arm in arms}
    unequal = len({*counts.values()}) > 1
    for arm in arms:
        cells = [name_of(records, arm, among=arms), *([str(counts[arm])] if unequal else [])]
        for b in columns:
            mean, low, high = (by_cell[arm, b][f"{prefix}{end}"] for end in ENDS)
            cell = f"{mean:.1f} [{low:.1f}, {high:.1f}]"
            cells.append(f"**{cell}**" if best and best.get(b) == arm else cell)
        lines.append(cells)
    return markdown_table([corner, *(["n"] if unequal else []), *columns.values()], lines)


def _responses(records: StudyResults) -> str:
    """Decoding of the responses: `sampled responses (temperature 1)`."""
    temperatures = [sampling_of(records.study, b).temperature for b in records.study.evaluation.benchmarks]
    sampled = ", ".join(f"{t:g}" for t in dict.fromkeys(t for t in temperatures if t > 0))
    kinds = {f"sampled responses (temperature {sampled})": sampled, "greedily decoded responses": 0 in temperatures}
    return " or ".join(kind for kind, there in kinds.items() if there)


def _greedy_columns(records: StudyResults, arms: Sequence[str]) -> pd.DataFrame | None:
    """The accuracy of greedily decoded responses; None unless all models have them on all benchmarks."""
    if records.evaluations["greedy"].isna().any():
        return None
    rows = []
    for arm in arms:
        scores = {b: [records.scores(arm, b, column="greedy")] for b in records.benchmarks}
        for b, one in [*scores.items(), ("average", [s for (s,) in scores.values()])]:
            rows.append([arm, b, *_percent(accuracy(one)).values()])
    return pd.DataFrame(rows, columns=["arm", "benchmark", *(f"{GREEDY}{name}" for name in ENDS)])


def _pairs(records: StudyResults) -> str:
    """The table of paired differences between headline methods and the initial model."""
    pairs = list(itertools.combinations([*catalogue.evaluated_headline(records.study), START], 2))
    if not pairs:
        return ""
    label = labels(records.study)
    differences = [measures.accuracy_difference(records, a, b) for a, b in pairs]
    lines = [
        [f"{label(a)} − {label(b)}{OTHER_SAMPLER * _differ_in_sampler(records, a, b)}", points_text(d), f"{p:.2g}"]
        for (a, b), d, p in zip(pairs, differences, holm([d.p for d in differences]), strict=True)
    ]
    several = len(pairs) > 1
    shown = markdown_table(["average over benchmarks", "difference, points", "p, corrected" if several else "p"], lines)
    over = " or ".join(dict.fromkeys(f"{d.n} {d.unit}" for d in differences))
    corrected = f"The p-values of no difference are corrected by Holm's method over the {len(pairs)} pairs."
    once = "All runs begin from one initial model, evaluated once: the error of its score is not in the intervals.\n"
    confounded = "\\* The samplers differ as well, so the difference is not due to the objectives alone.\n"
    return (
        f"\n{shown}\nPaired by seed and problem; 95% intervals over {over}, each by itself. "
        f"{corrected if several else 'p is of no difference.'}\n{once * (records.study.model.starts == 1)}"
        f"{confounded * (OTHER_SAMPLER in shown)}"
    )


def _differ_in_sampler(records: StudyResults, a: str, b: str) -> bool:
    arms = records.matrix.arms
    return START not in (a, b) and arms[a].method(records.study).sampler != arms[b].method(records.study).sampler


def _best(records: StudyResults, arms: list[str], benchmark: str) -> str | None:
    """The arm whose paired difference from every other arm is above zero with its interval; None if there is none."""
    top = max(arms, key=lambda arm: float(records.scores(arm, benchmark).mean()))

    def ahead(rival: str) -> bool:
        try:
            return measures.accuracy_difference(records, top, rival, [benchmark]).low > 0
        except UserError:  # no seed in common
            return False

    return top if len(arms) > 1 and all(ahead(arm) for arm in arms if arm != top) else None


# ---- ablation -------------------------------------------------------------------------------------------------------

PARTS = ("ratio", "clip", "aggregation", "penalties", "sampler")


def ablation(records: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per evaluated arm: parts, final accuracy, and paired difference from the arm that it is a variant of."""
    label = labels(records.study)
    arms = list(dict.fromkeys(run.arm for run in records.matrix.evaluated))
    rows = []
    for arm in arms:
        method = records.matrix.arms[arm].method(records.study)
        base = _base(arm, arms)
        clip = {key: value for key, value in method.clip.settings.items() if key in ("low", "high")}
        row: dict[str, Any] = {
            "arm": arm,
            "ratio": method.ratio.label,
            "clip": _part(method.clip.name, clip),
            "aggregation": method.aggregation.name,
            "penalties": "; ".join(_part(p.name, p.changed) for p in method.penalties),
            "sampler": "dynamic" if method.sampler.dynamic else "",
            "seeds": len(scores := measures.accuracy(records, arm)),
            "accuracy": round(float(scores.mean()), 6),
            "compared_with": base or "",
        }
        if base is not None:
            d = measures.accuracy_difference(records, arm, base)
            row |= {"difference": round(d.mean, 6), "low": round(d.low, 6), "high": round(d.high, 6)}
            row |= {"n": d.n, "unit": d.unit}
        rows.append(row)
    header = ["method", *PARTS, "seeds", "accuracy", "difference"]
    cells = []
    for row in rows:
        effect = "{difference:+.1f} [{low:+.1f}, {high:+.1f}] to ".format(**row) if row["compared_with"] else ""
        change = f"{effect}{label(row['compared_with'])}" if effect else ""
        parts = [*(row[key] for key in PARTS), str(row["seeds"])]
        cells.append([name_of(records, row["arm"], among=arms), *parts, f"{row['accuracy']:.1f}", change])
    # A study without variants has no difference.
    shown = [i for i in range(len(header)) if any(row[i] for row in cells)]
    over = " or ".join(dict.fromkeys(f"{row['n']} {row['unit']}" for row in rows if "unit" in row)) or "seeds"
    note = (
        "\nAccuracy in percent, mean over benchmarks. Differences in points, paired; their 95% intervals are over "
        f"{over}, not corrected for how many there are. Methods may differ in several columns. Rows with "
        "another number of seeds have other seeds: compare their methods by paired differences alone.\n"
    )
    table = markdown_table([header[i] for i in shown], [[row[i] for i in shown] for row in cells])
    return pd.DataFrame(rows), table + note


def _base(arm: str, arms: list[str]) -> str | None:
    """The arm of which an arm is a variant, with the same settings; None for the headline methods.

    Methods named `tepo_…` and `mpo_…` are variants of TEPO and MPO, all others of GRPO.
    """
    method, plus, settings = arm.partition("+")
    for name in ("tepo", "mpo"):
        if method.startswith(f"{name}_") and (base := name + plus + settings) in arms:
            return base
    base = f"grpo{plus}{settings}"
    return base if method not in ("grpo", "tepo", "mpo", "dapo") and base in arms else None


def _part(name: str, settings: Mapping[str, object]) -> str:
    """The name of a part with its parameters in parentheses."""
    inside = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({inside})" if inside else name


# ---- claims ----------------------------------------------------------------------------------------------------------

UNDECIDED = "### Inconclusive claims"  # the heading of their table
CLAIMS = ["claim", "comparison", "effect", "published", "finding", "verdict"]


def claims(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per comparison, and all claims as Markdown, which begins with a warning if a control failed."""
    decided, judged = decide_study(results), controls(results)
    label = labels(results.study)
    differences = [f.difference for claim in decided for f in claim.findings]
    units = sorted({(d.unit != SEEDS, d.n, d.unit) for d in differences})
    over = " or ".join(f"{n} {unit}" for _, n, unit in units) or "no seeds"
    note = (
        f"\n{counts_text(decided)} Each comparison is tested against 0, in the claimed direction and in the opposite "
        f"one, and against the published size where the paper gives one, over {over}, paired, and corrected by Holm's "
        f"method over all comparisons. Intervals are 95%, not corrected. A claim holds if all its comparisons "
        "do; a single one that is opposite, or smaller than published, decides against it. These results are for "
        f"{results.study.title or results.study.name} and do not decide the claims for other models.\n"
    )
    # Markdown: decided claims first; the others after a heading of their own, by which the report folds them.
    groups: dict[bool, list[list[str]]] = {True: [], False: []}
    for r in decided:
        text = f"{r.claim.text} ({r.claim.source})" + (f" *{r.claim.reading}*" if r.claim.reading else "")
        ends = [(text, f"**{r.outcome}**" if r.findings else r.outcome)] + [("", "")] * len(r.findings)
        rows = [[first, *row, last] for (first, last), row in zip(ends, cells(r, label), strict=False)]
        groups[r.verdict not in ("inconclusive", None)] += rows
    first = markdown_table(CLAIMS, groups[True]) if groups[True] else "No claim is decided.\n"
    others = f"\n{UNDECIDED}\n\n{markdown_table(CLAIMS, groups[False])}" if groups[False] else ""
    warning = f"**{text}**\n\n" if (text := controls_warning(judged)) else ""
    shown = f"\n```\n{controls_text(judged)}\n```\n" if judged else ""
    excluded = [[f"{c.text} ({c.source})", c.excluded] for c in excluded_claims().values()]
    others += f"\n### Claims that are not tested\n\n{markdown_table(['claim', 'why'], excluded)}"
    return ledger(decided), warning + first + note + shown + others


# ---- findings -------------------------------------------------------------------------------------------------------

FINDINGS = [
    "setting",
    "comparison",
    "mean validation accuracy (AUC)",
    "final, sampled",
    "final, greedy",
    "p, corrected",
    "finding",
]


def findings(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A sentence per regime and a row per comparison, after a warning if a control failed."""
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
            shown = [points_text(d) for d in (c.area, c.sampled, c.greedy)]
            finding = _finding(c, sensitive) + "; endpoints disagree" * c.disagreement
            row = [pair_text(results.study, c.pair, label), *shown, f"{c.p:.2g}", finding]
            cells.append(["" if i else name, *row])
        if not (sensitive or all(c.identical or c.pair.whole for c in group)):
            cells.append(["", nothing_text(results.study, group), "", "", "", "", ""])
    seeds = sorted({c.area.n for c in effects})
    over = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    planned = [pair.whole for pair in comparable.pairs(results.study)]
    identical = [c.pair.whole for c in effects if c.identical]
    families = [planned.count(whole) - identical.count(whole) for whole in (False, True)]
    tested = " and over ".join(
        f"the {n} {what}" for n, what in zip(families, ("planned comparisons", "of whole methods"), strict=True) if n
    )
    note = (
        f"Points, paired over {over} {effects[0].area.unit}, 95% intervals, not corrected. The primary endpoint is the "
        "mean validation accuracy over training (the area under its curve, AUC); p is of no difference in it, "
        f"corrected by Holm's method over {tested or 'the comparisons'} that are not identical.\n"
    )
    parts.append(f"{markdown_table(FINDINGS, cells)}\n{note}")
    return pd.DataFrame([_finding_row(c) for c in effects]), "\n\n".join(parts)


def _finding(c: Contrast, sensitive: bool) -> str:
    """The outcome in words; `SMALL` is reported only in regimes where some comparison is decided (rule 3)."""
    return c.outcome if sensitive or c.outcome in (DIFFER, IDENTICAL) else OPEN


def _finding_row(c: Contrast) -> dict[str, object]:
    """A contrast in the CSV file."""
    row: dict[str, object] = {"experiment": c.pair.experiment, "of": c.pair.arm.name, "than": c.pair.reference.name}
    for endpoint, difference in (("area", c.area), ("sampled", c.sampled), ("greedy", c.greedy)):
        if difference is not None:
            row |= {f"{endpoint}_{key}": value for key, value in difference.numbers().items()}
    return row | {"p_corrected": c.p, "finding": c.outcome}
