"""The results table: accuracy by method and benchmark with intervals (after TEPO's table 1)."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..analysis.statistics import average_interval, interval, paired_difference
from ..results.layout import START
from ..results.reader import StudyResults
from ..text import markdown_table
from .style import label, name_of


def table(results: StudyResults) -> tuple[pd.DataFrame, str]:
    """The numbers, and the table as Markdown. The best arm is bold if it is better than every other beyond noise."""
    arms = [
        START,
        *dict.fromkeys(a for e in results.study.experiments.values() if e.evaluate for a in _arms(results, e)),
    ]
    names = results.benchmarks
    scores = {(arm, b): results.scores(arm, b) for arm in arms for b in names}
    rows = []
    for arm in arms:
        for b in names:
            i = interval(scores[arm, b])
            rows.append({"arm": arm, "benchmark": b, **_percent(i), "seeds": len(scores[arm, b])})
        i = average_interval([scores[arm, b] for b in names])
        rows.append({"arm": arm, "benchmark": "average", **_percent(i), "seeds": len(scores[arm, names[0]])})
    rows += _clean_rows(results, arms)
    frame = pd.DataFrame(rows)
    best = {b: _significantly_best(results, arms, b) for b in names}
    lines = []
    for arm in arms:
        cells = [name_of(results, arm)]
        for b in [*names, "average"]:
            row = frame[(frame["arm"] == arm) & (frame["benchmark"] == b)].iloc[0]
            cell = f"{row['mean']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
            cells.append(f"**{cell}**" if best.get(b) == arm else cell)
        lines.append(cells)
    note = (
        "\nAccuracy in percent with 95% intervals by bootstrap over seeds and problems. "
        "Bold: better than every other arm, with all intervals of paired differences above zero.\n"
    )
    shown = markdown_table(["method", *names, "average"], lines)
    return frame, shown + note + _clean(frame, results) + _pairs(results, scores)


def _clean_rows(results: StudyResults, arms: list[str]) -> list[dict[str, object]]:
    """Rows without the problems that are among the training prompts, for benchmarks with such problems."""
    rows = []
    for b in results.benchmarks:
        for arm in arms if results.contaminated(b) else []:
            scores = results.scores(arm, b, clean=True)
            if scores.size:
                rows.append(
                    {"arm": arm, "benchmark": f"{b}, clean", **_percent(interval(scores)), "seeds": len(scores)}
                )
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


def _pairs(results: StudyResults, scores: dict[tuple[str, str], NDArray[np.float64]]) -> str:
    """The table of paired differences between headline methods and the start model."""
    arms = [*results.arms("headline"), START]
    lines = []
    for a, b in itertools.combinations(arms, 2):
        pairs = [(scores[a, name], scores[b, name]) for name in results.benchmarks]
        if any(x.shape != y.shape for x, y in pairs):
            continue
        i = average_interval([x - y for x, y in pairs])
        words = "beyond noise" if i.low > 0 or i.high < 0 else "undecided: the interval contains zero"
        numbers = f"{100 * i.mean:+.1f} [{100 * i.low:+.1f}, {100 * i.high:+.1f}]"
        lines.append([f"{label(a)} − {label(b)}", numbers, words])
    shown = markdown_table(["average over benchmarks", "difference, points", ""], lines)
    return f"\n{shown}\nPaired by seed and problem, 95% intervals, not corrected for multiple comparisons.\n"


def _arms(results: StudyResults, experiment: object) -> list[str]:
    name = next(n for n, e in results.study.experiments.items() if e is experiment)
    return results.arms(name)


def _percent(i: tuple[float, float, float]) -> dict[str, float]:
    return {name: round(100 * value, 2) for name, value in zip(("mean", "low", "high"), i, strict=True)}


def _significantly_best(results: StudyResults, arms: list[str], benchmark: str) -> str | None:
    """The arm whose paired difference from every other arm is above zero with its interval; None if there is none."""
    scores = {arm: results.scores(arm, benchmark) for arm in arms}
    top = max(arms, key=lambda arm: scores[arm].mean())
    rivals = [scores[a] for a in arms if a != top and scores[a].shape == scores[top].shape]
    return top if rivals and all(paired_difference(scores[top], r).low > 0 for r in rivals) else None
