"""The tables: accuracy by benchmark and by the parts of methods (after TEPO's tables 1 and 2), and comparisons."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ..analysis import Difference, Estimate, measures
from ..data.sets import sampling_of
from ..files import atomic_text
from ..paths import START
from ..results import StudyResults
from ..text import latex_table, markdown_table
from .shown import name_of, pair_text, setting_text

Cells = Mapping[tuple[str, str], Estimate]  # arm and column → accuracy in percent


class Part(NamedTuple):
    """A table as text, and what its numbers are."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]  # `**bold**` as in Markdown
    note: str


NOT_EVALUATED = pd.DataFrame(columns=["arm"]), [Part(["method"], [], "This study evaluates no model.")]


def write(name: str, results: StudyResults, out: Path) -> None:
    """Write the table ``name`` as numbers to ``out``.csv and as text to ``out``.md and, for LaTeX, to ``out``.tex."""
    frame, parts = {"results": results_table, "contrasts": contrasts, "ablation": ablation}[name](results)
    texts = [f"{markdown_table(part.header, part.rows)}\n{part.note}\n" for part in parts]
    atomic_text(out.with_name(out.name + ".csv"), frame.to_csv(index=False))
    atomic_text(out.with_name(out.name + ".md"), "\n".join(texts))
    for_latex = [f"% {part.note}\n{latex_table(part.header, part.rows)}" for part in parts]
    atomic_text(out.with_name(out.name + ".tex"), "\n".join(for_latex))


def evaluated(results: StudyResults) -> list[str]:
    return [START, *dict.fromkeys(run.arm for run in results.matrix.evaluated)]


def decodings(results: StudyResults) -> list[str]:
    """The columns of scores: of sampled responses, and of greedy ones where all models have them."""
    return ["per_problem"] if results.evaluations["greedy"].isna().any() else ["per_problem", "greedy"]


def overview(results: StudyResults) -> Part:
    """A row per evaluated arm: accuracy over the averaged benchmarks, and tokens per sampled response."""
    rows, units = [], dict[str, None]()
    for arm in evaluated(results):
        found = [measures.final_accuracy(results, arm, column=column) for column in decodings(results)]
        cells = [f"{e.mean:.1f}\u00a0±\u00a0{max(e.high - e.mean, e.mean - e.low):.1f}" for e in found]
        tokens = measures.response_length(results, arm).mean()
        rows.append([name_of(results, arm), *cells, *[""] * (2 - len(cells)), f"{tokens:.0f}"])
        units[f"{found[0].n} {found[0].unit}"] = None
    names = results.averaged
    benchmarks = f"{len(names)} benchmarks" if len(names) > 1 else names[0]
    header = ("accuracy in percent", "sampled", "greedy", "tokens")
    return Part(header, rows, f"Mean of {benchmarks}, ± 95% over {' or '.join(units)}; tokens per sampled response.")


def results_table(results: StudyResults) -> tuple[pd.DataFrame, list[Part]]:
    """Accuracy of every evaluated arm. The best arm is bold only if it is better than every other."""
    if not results.matrix.evaluated:
        return NOT_EVALUATED
    arms, names = evaluated(results), results.benchmarks
    columns = {b: [b] for b in names} | {"average": results.averaged}
    sampled, *greedy = (
        {(arm, b): measures.final_accuracy(results, arm, *of, column=c) for arm in arms for b, of in columns.items()}
        for c in decodings(results)
    )
    seen = {b: len(results.contaminated(b)) for b in names}
    seen = {b: n for b, n in seen.items() if 0 < n < results.scores(START, b).shape[1]}
    clean = {(arm, f"{b}, clean"): measures.final_accuracy(results, arm, b, clean=True) for b in seen for arm in arms}
    frame = pd.DataFrame([{"arm": a, "benchmark": b, **e._asdict()} for (a, b), e in {**sampled, **clean}.items()])
    for cells in greedy:
        rows = [{"arm": arm, "benchmark": b, **e._asdict()} for (arm, b), e in cells.items()]
        others = pd.DataFrame(rows).set_index(["arm", "benchmark"])[["mean", "low", "high"]]
        frame = frame.join(others.add_prefix("greedy_"), on=["arm", "benchmark"])
    units = " or ".join(dict.fromkeys(e.unit for e in sampled.values()))
    note = (
        f"Accuracy of {_responses(results)} in percent, with 95% intervals over {units}. Bold: better than every other "
        "arm, with all intervals of paired differences above zero."
    )
    if len({e.n for e in sampled.values()}) > 1:
        note += " Rows with another n have other seeds: compare their methods by paired differences alone."
    parts = [_part_of(results, sampled, note, {(_best(results, arms, b), b) for b in names})]
    if clean:
        counts = ", ".join(f"{n} of {b}" for b, n in seen.items())
        parts.append(_part_of(results, clean, f"The same without problems of the training set: {counts}."))
    note = (
        "The same for one greedily decoded response per problem, in percent. Training maximises the accuracy of "
        "sampled responses, which the table above is about."
    )
    parts += [_part_of(results, cells, note) for cells in greedy]
    return frame.round(6), parts


def _part_of(
    results: StudyResults, cells: Cells, note: str, best: Collection[tuple[str | None, str]] = frozenset()
) -> Part:
    """A row per arm and a column per benchmark; n is of units of the intervals; cells in ``best`` are bold."""
    arms, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    rows = []
    for arm in arms:
        row = [name_of(results, arm), str(cells[arm, columns[0]].n)]
        for column in columns:
            mean, low, high, *_ = cells[arm, column]
            bold = "**" * ((arm, column) in best)
            row.append(f"{bold}{mean:.1f} [{low:.1f}, {high:.1f}]{bold}")
        rows.append(row)
    return Part(["method", "n", *(b.replace("_", " ") for b in columns)], rows, note)


def _responses(results: StudyResults) -> str:
    temperatures = [sampling_of(results.study, b).temperature for b in results.study.evaluation.benchmarks]
    sampled = ", ".join(f"{t:g}" for t in dict.fromkeys(t for t in temperatures if t > 0))
    kinds = {f"sampled responses (temperature {sampled})": sampled, "greedily decoded responses": 0 in temperatures}
    return " or ".join(kind for kind, there in kinds.items() if there)


def _best(results: StudyResults, arms: list[str], benchmark: str) -> str | None:
    """The arm whose paired difference from every other arm is above zero with its interval; None if there is none."""
    top, *others = sorted(arms, key=lambda arm: -float(results.scores(arm, benchmark).mean()))
    found = (measures.there(measures.accuracy_difference, results, top, arm, benchmark) for arm in others)
    return top if others and all(d is not None and d.replicated and d.low > 0 for d in found) else None


def ablation(results: StudyResults) -> tuple[pd.DataFrame, list[Part]]:
    """A row per evaluated arm: the parts of its method, and its final accuracy."""
    if not results.matrix.evaluated:
        return NOT_EVALUATED
    arms = list(dict.fromkeys(run.arm for run in results.matrix.evaluated))
    rows = []
    for arm in arms:
        method = results.matrix.arms[arm].method
        clip = {key: value for key, value in method.clip.settings.items() if key in ("low", "high")}
        found = measures.final_accuracy(results, arm)
        parts = {
            "ratio": method.ratio.label,
            "clip": _with_settings(method.clip.name, clip),
            "aggregation": method.aggregation.name,
            "penalties": "; ".join(_with_settings(p.name, p.changed) for p in method.penalties),
            "sampler": "dynamic" if method.sampler.dynamic else "",
        }
        if results.matrix.arms[arm].training.trainer == "command":  # whose methods are names
            parts = dict.fromkeys(parts, "")
        seeds = sum(run.arm == arm for run in results.matrix.evaluated)
        rows.append({"arm": arm, **parts, "seeds": seeds, "accuracy": round(found.mean, 6)})
    frame = pd.DataFrame(rows)
    text = frame.drop(columns=[part for part in parts if not any(frame[part])]).rename(columns={"arm": "method"})
    text["method"] = [name_of(results, arm) for arm in arms]
    text["accuracy"] = [f"{accuracy:.1f}" for accuracy in frame["accuracy"]]
    note = "Accuracy in percent, mean over benchmarks. Rows with another number of seeds have other seeds."
    return frame, [Part([*text.columns], text.astype(str).to_numpy().tolist(), note)]


def _with_settings(name: str, settings: Mapping[str, object]) -> str:
    inside = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({inside})" if inside else name


CONTRASTS = ["comparison", "setting", "AUC", "final, sampled", "final, greedy", "tokens", "p", "n", "outcome"]


def contrasts(results: StudyResults) -> tuple[pd.DataFrame, list[Part]]:
    """A row per comparison: differences in both endpoints and in response length, p of the first, n, outcome."""
    study, found = results.study, measures.contrasts(results)
    rows, cells = [], []
    for c in found:
        setting = ", ".join(setting_text(key, value) for key, value in c.pair.arm.settings)
        effects = [_points(d) for d in (c.auc, c.sampled, c.greedy, c.length)]
        outcome = c.outcome + "; endpoints disagree" * c.disagreement
        cells.append([pair_text(study, c.pair), setting, *effects, f"{c.p:.2g}", str(c.auc.n), outcome])
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


def _points(effect: Difference | None) -> str:
    if effect is None:
        return ""
    has_interval = effect.replicated and math.isfinite(effect.low)
    return f"{effect.mean:+.1f}" + f" [{effect.low:+.1f}, {effect.high:+.1f}]" * has_interval
