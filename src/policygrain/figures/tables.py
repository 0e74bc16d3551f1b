"""The tables: accuracy by benchmark and by the parts of methods (after TEPO's tables 1 and 2), and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ..analysis import Estimate, accuracy, measures
from ..analysis.contrasts import contrasts as all_contrasts
from ..data.sets import sampling_of
from ..errors import UserError
from ..files import atomic_text
from ..paths import START
from ..results import StudyResults
from ..text import latex_table, markdown_table
from .labels import name_of, pair_text, parts_text, points_text, settings_of

Cells = Mapping[tuple[str, str], Estimate]  # arm and column → accuracy


class Part(NamedTuple):
    """A table as text, and what its numbers are."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]  # `**bold**` as in Markdown
    note: str


def write(name: str, results: StudyResults, out: Path) -> None:
    """Write the table ``name`` as numbers to ``out``.csv and as text to ``out``.md and, for LaTeX, to ``out``.tex."""
    frame, parts = {"results": results_table, "contrasts": contrasts, "ablation": ablation}[name](results)
    texts = [f"{markdown_table(part.header, part.rows)}\n{part.note}\n" for part in parts]
    atomic_text(out.with_name(out.name + ".csv"), frame.to_csv(index=False))
    atomic_text(out.with_name(out.name + ".md"), "\n".join(texts))
    for_latex = [f"% {part.note}\n{latex_table(part.header, part.rows)}" for part in parts]
    atomic_text(out.with_name(out.name + ".tex"), "\n".join(for_latex))


def results_table(records: StudyResults) -> tuple[pd.DataFrame, list[Part]]:
    """Accuracy of every evaluated arm. The best arm is bold only if it is better than every other."""
    evaluated = [name for name, e in records.study.experiments.items() if e.evaluate]
    arms = [START, *dict.fromkeys(arm for name in evaluated for arm in records.arms(name))]
    names, unit = records.benchmarks, measures.unit_of(records.study)
    columns = {b: [b] for b in names} | {"average": names}

    def cells(column: str) -> Cells:
        return {
            (arm, b): accuracy([records.scores(arm, each, column=column) for each in of], unit)
            for arm in arms
            for b, of in columns.items()
        }

    sampled = cells("per_problem")
    greedy = {} if records.evaluations["greedy"].isna().any() else cells("greedy")
    without = {(arm, b): records.scores(arm, b, clean=True) for b in names if records.contaminated(b) for arm in arms}
    clean = {(arm, f"{b}, clean"): accuracy([scores], unit) for (arm, b), scores in without.items() if scores.size}
    rows = []
    for (arm, b), estimate in {**sampled, **clean}.items():
        row = {"arm": arm, "benchmark": b, **_percent(estimate), "n": estimate.n, "unit": estimate.unit}
        rows.append(
            row | ({f"greedy_{k}": v for k, v in _percent(greedy[arm, b]).items()} if (arm, b) in greedy else {})
        )
    units = " or ".join(dict.fromkeys(e.unit for e in sampled.values()))
    notes = [
        f"Accuracy of {_responses(records)} in percent, with 95% intervals over {units}. Bold: better than every other "
        "arm, with all intervals of paired differences above zero."
    ]
    if len({e.n for e in sampled.values()}) > 1:
        notes.append("Rows with another n have other seeds: compare their methods by paired differences alone.")
    best = {(_best(records, arms, b), b) for b in names}
    parts = [_part_of(records, "method", sampled, " ".join(notes), best)]
    if clean:
        counts = ", ".join(f"{len(records.contaminated(b))} of {b}" for b in names if (START, f"{b}, clean") in clean)
        parts.append(_part_of(records, "method", clean, f"The same without problems of the training set: {counts}."))
    if greedy:
        note = (
            "The same for one greedily decoded response per problem, in percent. Training maximises the accuracy of "
            "sampled responses, which the table above is about."
        )
        parts.append(_part_of(records, "method", greedy, note))
    return pd.DataFrame(rows), parts


def _percent(estimate: Estimate) -> dict[str, float]:
    return {name: round(100 * getattr(estimate, name), 6) for name in ("mean", "low", "high")}


def _part_of(
    records: StudyResults, corner: str, cells: Cells, note: str, best: set[tuple[str | None, str]] | None = None
) -> Part:
    """A row per arm and a column per benchmark; cells in ``best`` are bold.

    A column `n`, the number of units of the intervals, is added if arms differ.
    """
    arms, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    counts = {arm: cells[arm, columns[0]].n for arm in arms}
    unequal = len({*counts.values()}) > 1
    rows = []
    for arm in arms:
        row = [name_of(records, arm, among=arms), *([str(counts[arm])] if unequal else [])]
        for column in columns:
            mean, low, high = _percent(cells[arm, column]).values()
            bold = "**" * ((arm, column) in (best or ()))
            row.append(f"{bold}{mean:.1f} [{low:.1f}, {high:.1f}]{bold}")
        rows.append(row)
    return Part([corner, *(["n"] if unequal else []), *columns], rows, note)


def _responses(records: StudyResults) -> str:
    """Decoding of the responses: `sampled responses (temperature 1)`."""
    temperatures = [sampling_of(records.study, b).temperature for b in records.study.evaluation.benchmarks]
    sampled = ", ".join(f"{t:g}" for t in dict.fromkeys(t for t in temperatures if t > 0))
    kinds = {f"sampled responses (temperature {sampled})": sampled, "greedily decoded responses": 0 in temperatures}
    return " or ".join(kind for kind, there in kinds.items() if there)


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


def ablation(records: StudyResults) -> tuple[pd.DataFrame, list[Part]]:
    """A row per evaluated arm: the parts of its method, and its final accuracy."""
    arms = list(dict.fromkeys(run.arm for run in records.matrix.evaluated))
    rows = []
    for arm in arms:
        method = records.matrix.arms[arm].method
        clip = {key: value for key, value in method.clip.settings.items() if key in ("low", "high")}
        scores = measures.accuracy(records, arm)
        rows.append(
            {
                "arm": arm,
                "ratio": method.ratio.label,
                "clip": _with_settings(method.clip.name, clip),
                "aggregation": method.aggregation.name,
                "penalties": "; ".join(_with_settings(p.name, p.changed) for p in method.penalties),
                "sampler": "dynamic" if method.sampler.dynamic else "",
                "seeds": len(scores),
                "accuracy": round(float(scores.mean()), 6),
            }
        )
    frame = pd.DataFrame(rows)
    text = frame.drop(columns=[part for part in PARTS if not any(frame[part])]).rename(columns={"arm": "method"})
    text["method"] = [name_of(records, arm, among=arms) for arm in arms]
    text["accuracy"] = [f"{accuracy:.1f}" for accuracy in frame["accuracy"]]
    note = "Accuracy in percent, mean over benchmarks. Rows with another number of seeds have other seeds."
    return frame, [Part([*text.columns], text.astype(str).to_numpy().tolist(), note)]


def _with_settings(name: str, settings: Mapping[str, object]) -> str:
    """The name of a part with its parameters in parentheses."""
    inside = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({inside})" if inside else name


# ---- contrasts -------------------------------------------------------------------------------------------------------

CONTRASTS = ["comparison", "setting", "AUC", "final, sampled", "final, greedy", "tokens", "p", "n", "outcome"]


def contrasts(results: StudyResults) -> tuple[pd.DataFrame, list[Part]]:
    """A row per comparison: differences in both endpoints and in response length, p of the first, n, outcome."""
    study, found = results.study, all_contrasts(results)
    rows, cells = [], []
    for c in found:
        parts = parts_text(c.pair)
        effects = [points_text(d) for d in (c.auc, c.sampled, c.greedy, c.length)]
        outcome = c.outcome + "; endpoints disagree" * c.disagreement
        name = pair_text(study, c.pair) + f" (whole methods: {parts})" * bool(parts)
        cells.append([name, settings_of(c.pair), *effects, f"{c.p:.2g}", str(c.auc.n), outcome])
        row: dict[str, object] = {"experiment": c.pair.experiment, "of": c.pair.arm.name, "than": c.pair.reference.name}
        for endpoint in ("auc", "sampled", "greedy", "length"):
            difference = getattr(c, endpoint)
            row |= {f"{endpoint}_{key}": value for key, value in difference.numbers().items()} if difference else {}
        rows.append(row | {"p_corrected": c.p, "outcome": c.outcome})
    if not found:
        return pd.DataFrame(columns=["of", "than"]), [Part(["comparison"], [], "This study compares no methods.")]
    note = (
        "AUC: mean validation accuracy during training, the primary endpoint; final: accuracy of the final model on "
        "the benchmarks; both in points. Tokens: length of sampled responses. Paired differences with 95% intervals "
        f"over n {found[0].auc.unit}, not corrected; p is of no difference in AUC, corrected by Holm's method over "
        "the comparisons of one part, and separately over those of whole methods, which differ in the parts named."
    )
    return pd.DataFrame(rows), [Part(CONTRASTS, cells, note)]
