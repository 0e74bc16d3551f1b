"""The results table: accuracy by method and benchmark with intervals (after TEPO's table 1)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..analysis import Estimate, accuracy, difference, measures
from ..analysis.verdicts import holm
from ..results.layout import START
from ..results.reader import StudyResults
from ..tasks.registry import sampling_of
from ..text import markdown_table
from .measured import headline
from .style import labels, name_of

ENDS = ("mean", "low", "high")
GREEDY = "greedy_"  # before the names of columns


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """The numbers, and the tables as Markdown. The best is bold only where it is better than every other arm."""
    arms = [
        START,
        *dict.fromkeys(a for e in results.study.experiments.values() if e.evaluate for a in _arms(results, e)),
    ]
    names = results.benchmarks
    scores = {(arm, b): results.scores(arm, b) for arm in arms for b in names}
    rows = []
    for arm in arms:
        for b in names:
            i = accuracy([scores[arm, b]])
            rows.append({"arm": arm, "benchmark": b, **_percent(i), "n": i.n, "unit": i.unit})
        i = accuracy([scores[arm, b] for b in names])
        rows.append({"arm": arm, "benchmark": "average", **_percent(i), "n": i.n, "unit": i.unit})
    rows += _clean_rows(results, arms)
    frame = pd.DataFrame(rows)
    best = {b: _best(results, arms, b) for b in names}
    shown = _scores(results, frame, arms, best)
    units = " or ".join(dict.fromkeys(frame["unit"]))
    note = (
        f"\nAccuracy of {_responses(results)} in percent, with 95% intervals over {units}. "
        "Bold: better than every other arm, with all intervals of paired differences above zero.\n"
    )
    if (greedy := _greedy_columns(results, arms)) is not None:
        frame = frame.merge(greedy, on=["arm", "benchmark"], how="left")
    texts = [shown, note, _clean(frame, results), _pairs(results), _greedy(results, frame, arms)]
    return frame, "".join(texts)


def _scores(
    results: StudyResults, frame: pd.DataFrame, arms: Sequence[str], best: Mapping[str, str | None], prefix: str = ""
) -> str:
    """A row per arm, a column per benchmark and for their average."""
    lines = []
    for arm in arms:
        cells = [name_of(results, arm, among=arms)]
        for b in [*results.benchmarks, "average"]:
            row = frame[(frame["arm"] == arm) & (frame["benchmark"] == b)].iloc[0]
            mean, low, high = (float(row[f"{prefix}{name}"]) for name in ENDS)
            cell = f"{mean:.1f} [{low:.1f}, {high:.1f}]"
            cells.append(f"**{cell}**" if best.get(b) == arm else cell)
        lines.append(cells)
    return markdown_table(["method", *results.benchmarks, "average"], lines)


def _responses(results: StudyResults) -> str:
    """How the responses were decoded: `sampled responses (temperature 1)`."""
    found = [sampling_of(results.study, b).temperature for b in results.study.evaluation.benchmarks]
    sampled = ", ".join(f"{t:g}" for t in dict.fromkeys(t for t in found if t > 0))
    kinds = ([f"sampled responses (temperature {sampled})"] if sampled else []) + (
        ["greedily decoded responses"] if 0 in found else []
    )
    return " or ".join(kinds)


def _greedy_columns(results: StudyResults, arms: Sequence[str]) -> pd.DataFrame | None:
    """The accuracy of greedily decoded responses; None unless all models have them on all benchmarks."""
    table = results.evaluations
    columns = ["arm", "benchmark", *(f"{GREEDY}{name}" for name in ENDS)]
    if "greedy" not in table or table["greedy"].isna().any():
        return None
    rows: list[list[object]] = []
    for arm in arms:
        own = table[table["arm"] == arm].sort_values("seed")
        scores = [np.array(own[own["benchmark"] == b]["greedy"].tolist(), dtype=float) for b in results.benchmarks]
        for b, one in [*zip(results.benchmarks, ([s] for s in scores), strict=True), ("average", scores)]:
            rows.append([arm, b, *_percent(accuracy(one)).values()])
    return pd.DataFrame(rows, columns=columns)


def _greedy(results: StudyResults, frame: pd.DataFrame, arms: Sequence[str]) -> str:
    """The table of greedy accuracy; empty without it."""
    if f"{GREEDY}mean" not in frame:
        return ""
    shown = _scores(results, frame, arms, {}, GREEDY)
    return (
        f"\n{shown}\nThe same for one greedily decoded response per problem, in percent. Training maximises the "
        "accuracy of sampled responses, which the table above and the claims are about.\n"
    )


def _clean_rows(results: StudyResults, arms: list[str]) -> list[dict[str, object]]:
    """Rows without the problems that are among the training prompts, for benchmarks with such problems."""
    rows = []
    for b in results.benchmarks:
        for arm in arms if results.contaminated(b) else []:
            scores = results.scores(arm, b, clean=True)
            if scores.size:
                i = accuracy([scores])
                rows.append({"arm": arm, "benchmark": f"{b}, clean", **_percent(i), "n": i.n, "unit": i.unit})
    return rows


def _clean(frame: pd.DataFrame, results: StudyResults) -> str:
    """The table of scores without contaminated problems; empty if there are none."""
    found = {b: len(results.contaminated(b)) for b in results.benchmarks if results.contaminated(b)}
    if not found:
        return ""
    header = ["without problems of the training set", *(f"{b} (−{n})" for b, n in found.items())]
    lines = []
    for arm in frame["arm"].unique():
        cells = [name_of(results, arm, among=frame["arm"].unique())]
        for b in found:
            row = frame[(frame["arm"] == arm) & (frame["benchmark"] == f"{b}, clean")].iloc[0]
            cells.append(f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]")
        lines.append(cells)
    return "\n" + markdown_table(header, lines)


def _pairs(results: StudyResults) -> str:
    """The table of paired differences between headline methods and the start model."""
    pairs = list(itertools.combinations([*headline(results), START], 2))
    if not pairs:
        return ""
    label = labels(results.study)
    found = [difference(*measures.paired_scores(results, a, b)).times(100) for a, b in pairs]
    lines = [
        [f"{label(a)} − {label(b)}", f"{d.mean:+.1f} [{d.low:+.1f}, {d.high:+.1f}]", f"{p:.2g}"]
        for (a, b), d, p in zip(pairs, found, holm([d.p for d in found]), strict=True)
    ]
    p_values = "p, corrected" if len(pairs) > 1 else "p"
    shown = markdown_table(["average over benchmarks", "difference, points", p_values], lines)
    over = " or ".join(dict.fromkeys(f"{d.n} {d.unit}" for d in found))
    corrected = (
        f"The p-values of no difference are corrected by Holm's method over the {len(pairs)} pairs."
        if len(pairs) > 1
        else "p is of no difference."
    )
    once = (
        "All runs begin from one start model, evaluated once: the error of its score is not in the intervals.\n"
        if measures.has_one_start(results)
        else ""
    )
    return f"\n{shown}\nPaired by seed and problem; 95% intervals over {over}, each by itself. {corrected}\n{once}"


def _arms(results: StudyResults, experiment: object) -> list[str]:
    name = next(n for n, e in results.study.experiments.items() if e is experiment)
    return results.arms(name)


def _percent(i: Estimate) -> dict[str, float]:
    return {name: round(100 * getattr(i, name), 6) for name in ENDS}


def _best(results: StudyResults, arms: list[str], benchmark: str) -> str | None:
    """The arm whose paired difference from every other arm is above zero with its interval; None if there is none."""
    top = max(arms, key=lambda arm: float(results.scores(arm, benchmark).mean()))

    def ahead(rival: str) -> bool:
        if not measures.paired_seeds(results, top, rival):
            return False
        return difference(*measures.paired_scores(results, top, rival, benchmarks=[benchmark])).low > 0

    return top if len(arms) > 1 and all(ahead(arm) for arm in arms if arm != top) else None
