"""The tables: accuracy by benchmark and by the parts of methods (after TEPO's tables 1 and 2), and comparisons."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..analysis import Estimate, accuracy, measures
from ..analysis import contrasts as analysis
from ..data.sets import sampling_of
from ..errors import UserError
from ..paths import START
from ..results import StudyResults
from ..text import markdown_table
from .labels import labels, name_of

ENDS = ("mean", "low", "high")
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
    if (greedy := _greedy_columns(records, arms)) is not None:
        frame = frame.merge(greedy, on=["arm", "benchmark"], how="left")
        texts += [
            f"\n{_cells(records, frame, arms, 'method', columns, GREEDY)}",
            "\nThe same for one greedily decoded response per problem, in percent. Training maximises the "
            "accuracy of sampled responses, which the table above is about.\n",
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
    """A row per evaluated arm: the parts of its method, and its final accuracy."""
    arms = list(dict.fromkeys(run.arm for run in records.matrix.evaluated))
    rows = []
    for arm in arms:
        method = records.matrix.arms[arm].method(records.study)
        clip = {key: value for key, value in method.clip.settings.items() if key in ("low", "high")}
        scores = measures.accuracy(records, arm)
        rows.append(
            {
                "arm": arm,
                "ratio": method.ratio.label,
                "clip": _part(method.clip.name, clip),
                "aggregation": method.aggregation.name,
                "penalties": "; ".join(_part(p.name, p.changed) for p in method.penalties),
                "sampler": "dynamic" if method.sampler.dynamic else "",
                "seeds": len(scores),
                "accuracy": round(float(scores.mean()), 6),
            }
        )
    shown = [part for part in PARTS if any(row[part] for row in rows)]
    cells = []
    for row in rows:
        parts = (str(row[key]) for key in (*shown, "seeds"))
        cells.append([name_of(records, str(row["arm"]), among=arms), *parts, f"{row['accuracy']:.1f}"])
    note = "\nAccuracy in percent, mean over benchmarks. Rows with another number of seeds have other seeds.\n"
    return pd.DataFrame(rows), markdown_table(["method", *shown, "seeds", "accuracy"], cells) + note


def _part(name: str, settings: Mapping[str, object]) -> str:
    """The name of a part with its parameters in parentheses."""
    inside = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({inside})" if inside else name


# ---- contrasts -------------------------------------------------------------------------------------------------------

CONTRASTS = ["comparison", "setting", "AUC", "final, sampled", "final, greedy", "tokens", "p", "n", "outcome"]


def contrasts(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A row per comparison: differences in both endpoints and in response length, p of the first, n, outcome."""
    study, label = results.study, labels(results.study)
    found = analysis.contrasts(results)
    if not found:
        return pd.DataFrame(columns=["of", "than"]), "This study compares no methods.\n"
    cells = []
    for c in found:
        parts = analysis.parts_text(study, c.pair)
        effects = [analysis.points_text(d) for d in (c.auc, c.sampled, c.greedy, c.length)]
        outcome = c.outcome + "; endpoints disagree" * c.disagreement
        name = analysis.pair_text(study, c.pair, label) + f" (whole methods: {parts})" * bool(parts)
        setting = analysis.setting_text(study, c.pair)
        cells.append([name, setting, *effects, f"{c.p:.2g}", str(c.auc.n), outcome])
    note = (
        "AUC: mean validation accuracy during training, the primary endpoint; final: accuracy of the final model on "
        "the benchmarks; both in points. Tokens: length of sampled responses. Paired differences with 95% intervals "
        f"over n {found[0].auc.unit}, not corrected; p is of no difference in AUC, corrected by Holm's method over "
        "the comparisons of one part, and separately over those of whole methods, which differ in the parts named.\n"
    )
    table = markdown_table(CONTRASTS, cells)
    return pd.DataFrame([_contrast_row(c) for c in found]), f"{table}\n{note}"


def _contrast_row(c: analysis.Contrast) -> dict[str, object]:
    """A contrast in the CSV file."""
    row: dict[str, object] = {"experiment": c.pair.experiment, "of": c.pair.arm.name, "than": c.pair.reference.name}
    for endpoint, difference in (("auc", c.auc), ("sampled", c.sampled), ("greedy", c.greedy), ("length", c.length)):
        if difference is not None:
            row |= {f"{endpoint}_{key}": value for key, value in difference.numbers().items()}
    return row | {"p_corrected": c.p, "outcome": c.outcome}
