"""The results table: accuracy by method and benchmark with intervals (after TEPO's table 1)."""

from __future__ import annotations

import itertools

import pandas as pd

from ..analysis import Estimate, accuracy, difference, measures
from ..analysis.verdicts import holm
from ..results.layout import START
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import label, name_of


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """The numbers, and the table as Markdown. The best is bold only where it is better than every other arm."""
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
    lines = []
    for arm in arms:
        cells = [name_of(results, arm)]
        for b in [*names, "average"]:
            row = frame[(frame["arm"] == arm) & (frame["benchmark"] == b)].iloc[0]
            cell = f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
            cells.append(f"**{cell}**" if best.get(b) == arm else cell)
        lines.append(cells)
    units = " or ".join(dict.fromkeys(frame["unit"]))
    note = (
        f"\nAccuracy in percent with 95% intervals over {units}. "
        "Bold: better than every other arm, with all intervals of paired differences above zero.\n"
    )
    shown = markdown_table(["method", *names, "average"], lines)
    return frame, shown + note + _clean(frame, results) + _pairs(results)


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
        cells = [name_of(results, arm)]
        for b in found:
            row = frame[(frame["arm"] == arm) & (frame["benchmark"] == f"{b}, clean")].iloc[0]
            cells.append(f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]")
        lines.append(cells)
    return "\n" + markdown_table(header, lines)


def _pairs(results: StudyResults) -> str:
    """The table of paired differences between headline methods and the start model."""
    pairs = list(itertools.combinations([*results.arms("headline"), START], 2))
    if not pairs:
        return ""
    found = [difference(*measures.paired_scores(results, a, b)).times(100) for a, b in pairs]
    lines = [
        [f"{label(a)} − {label(b)}", f"{d.mean:+.1f} [{d.low:+.1f}, {d.high:+.1f}]", f"{p:.2g}"]
        for (a, b), d, p in zip(pairs, found, holm([d.p for d in found]), strict=True)
    ]
    shown = markdown_table(["average over benchmarks", "difference, points", "p, corrected"], lines)
    over = " or ".join(dict.fromkeys(f"{d.n} {d.unit}" for d in found))
    return (
        f"\n{shown}\nPaired by seed and problem; 95% intervals over {over}, each by itself. The p-values of no "
        f"difference are corrected by Holm's method over the {len(pairs)} pairs.\n"
    )


def _arms(results: StudyResults, experiment: object) -> list[str]:
    name = next(n for n, e in results.study.experiments.items() if e is experiment)
    return results.arms(name)


def _percent(i: Estimate) -> dict[str, float]:
    return {name: round(100 * getattr(i, name), 6) for name in ("mean", "low", "high")}


def _best(results: StudyResults, arms: list[str], benchmark: str) -> str | None:
    """The arm whose paired difference from every other arm is above zero with its interval; None if there is none."""
    scores = {arm: results.scores(arm, benchmark) for arm in arms}
    top = max(arms, key=lambda arm: scores[arm].mean())
    rivals = [scores[a] for a in arms if a != top and scores[a].shape == scores[top].shape]
    return top if rivals and all(difference([scores[top]], [r]).low > 0 for r in rivals) else None
