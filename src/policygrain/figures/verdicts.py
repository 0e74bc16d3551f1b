"""All comparisons of the claims: effects in units of their uncertainty, and the verdicts."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from ..analysis.claims import ClaimResult, Finding, decide_study
from ..analysis.ledger import Comparison
from ..analysis.statistics import Interval
from ..results.reader import StudyResults
from .forest import clipped
from .style import BLUE, GREEN, GREY, ORANGE, WIDE, Look, labels, legend, updates_text

REACH = 6.0  # half widths of an interval; an arrow shows that an effect or interval goes on
LOOKS: dict[str, Look] = {
    "holds": {"color": GREEN, "marker": "^"},
    "opposite": {"color": ORANGE, "marker": "v"},
    "smaller than published": {"color": BLUE, "marker": "s"},
    "undecided": {"color": GREY, "marker": "o"},
}
RELATIONS = {"above": ">", "below": "<", "apart": "≠"}
LETTERS = 92  # of a heading, in a line as wide as the figure
WHAT = {
    "benchmarks": "benchmarks won",
    "drop": "largest fall of accuracy",
    "round": "one round",
    "snr": "signal to noise",
    "steps": "steps needed",
    "tokens": "tokens needed",
}
BESIDE = 22  # letters of a line of a verdict


def draw(results: StudyResults) -> Figure:
    """A row per comparison, grouped by claim, with 95% intervals over its unit of replication."""
    return drawn(decide_study(results), labels(results.study))


def drawn(decided: list[ClaimResult], named: Callable[[str], str]) -> Figure:
    """The figure of these claims; ``named`` gives the label of an arm."""
    headings = [textwrap.wrap(result.claim.text, LETTERS) for result in decided]
    height = sum(max(1, len(r.findings)) + 0.8 * len(h) + 0.5 for r, h in zip(decided, headings, strict=True))
    figure = Figure(figsize=(WIDE * 1.1, 1.0 + 0.175 * height))
    axes = figure.subplots()
    axes.axvline(0, color="#000000", linewidth=0.7, zorder=1)
    place, ticks = 0.0, list[tuple[float, str]]()
    for result, heading in zip(decided, headings, strict=True):
        axes.text(
            0.01, place, "\n".join(heading), transform=blended_transform_factory(figure.transFigure, axes.transData),
            va="top", fontsize=7, fontweight="bold", in_layout=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
        place = _claim(axes, result, place + 0.8 * len(heading) + 0.4, ticks, named) + 0.1
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(place, -0.3)
    axes.set_xlim(-REACH, REACH)
    axes.set_xlabel("effect in units of half its interval;\nright: in the direction of the claim; bar: published size")
    handles = [Line2D([], [], markersize=4.5, linewidth=1.3, **look) for look in LOOKS.values()]
    legend(figure, entries=(handles, list(LOOKS)))
    return figure


def _claim(
    axes: Axes, result: ClaimResult, first: float, ticks: list[tuple[float, str]], named: Callable[[str], str]
) -> float:
    """The rows of one claim, the first at height ``first``; the height below them."""
    rows = list(zip(result.claim.comparisons, result.findings, strict=False))
    for i, (c, finding) in enumerate(rows):
        interval, size = claimed_effect(c, finding)
        if np.isfinite(interval).all():
            clipped(axes, first + i, interval, (-REACH, REACH), LOOKS[finding.verdict])
        if size is not None and size < REACH:
            axes.plot([size], [first + i], "|", color=GREY, markersize=6)
        ticks.append((first + i, _text(c, named)))
    last = first + max(1, len(rows)) - 1
    if not rows:
        why = "no records" if result.verdict is None else "curves still rise"
        axes.text(0, last, why, ha="center", va="center", fontsize=6.5, color=GREY, style="italic")
    verdict = textwrap.fill(result.outcome, BESIDE)
    color = LOOKS[result.verdict or "undecided"]["color"]
    axes.text(
        *(1.025, (first + last) / 2, verdict),
        transform=axes.get_yaxis_transform(),
        **{"ha": "left", "va": "center", "fontsize": 7, "color": color, "fontweight": "bold"},
    )
    return last + 1


def claimed_effect(c: Comparison, finding: Finding) -> tuple[Interval, float | None]:
    """Effect with interval, and published size, in units of half the interval; positive in the claimed direction.

    A claim of any difference has the direction of the effect. An interval without an end has no such unit.
    """
    sign = -1 if c.claimed == "below" or (c.claimed == "apart" and finding.effect < 0) else 1
    half = (finding.high - finding.low) / 2 or 1.0
    if not np.isfinite(half):
        return Interval(np.nan, np.nan, np.nan), None
    effect, *ends = (sign * value / half for value in (finding.effect, finding.low, finding.high))
    return Interval(effect, min(ends), max(ends)), c.size and c.size / half


def _text(c: Comparison, named: Callable[[str], str]) -> str:
    """What is claimed: `entropy: TEPO > DAPO`, `steps needed: TEPO < GRPO`; settings of both are named once."""
    what = WHAT.get(c.metric or c.statistic, (c.metric or c.statistic).replace("_", " "))
    what += f" after {updates_text(c.updates)}" if c.updates else ""
    first, settings = c.of.partition("+")[::2]
    one = first if settings and settings == c.than.partition("+")[2] else c.of
    return f"{what}: {named(one)} {RELATIONS[c.claimed]} {named(c.than)}"
