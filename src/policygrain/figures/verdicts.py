"""All comparisons of the claims: effects in units of their margins, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..analysis.claims import ClaimResult, decide_study
from ..analysis.ledger import Comparison
from ..analysis.statistics import Interval
from ..results.reader import StudyResults
from .forest import clipped, shade
from .style import COLOURS, WIDE, label, updates_text

REACH = 6.0  # margins; an arrow shows that an effect or interval goes on
LOOKS = {
    "supported": (COLOURS[2], "^"),
    "not supported": (COLOURS[1], "v"),
    "no difference larger than the margin": (COLOURS[0], "s"),
    "undecided": ("#888888", "o"),
}
WHAT = {
    "curve": "learning curve",
    "round": "one round",
    "snr": "signal to noise",
    "entropy_old": "entropy",
    "steps": "steps needed",
    "tokens": "tokens needed",
}
SHORT = {"no difference larger than the margin": "no difference\nlarger than margin"}


def draw(results: StudyResults) -> Figure:
    """A row per comparison, grouped by claim, with 95% intervals over its unit of replication."""
    return drawn(decide_study(results), label)


def drawn(decided: list[ClaimResult], named: Callable[[str], str]) -> Figure:
    """The figure of these claims; ``named`` gives the label of an arm."""
    height = sum(max(1, len(result.findings)) for result in decided) + 0.9 * len(decided)
    figure = Figure(figsize=(WIDE * 1.1, 0.9 + 0.19 * height))
    axes = figure.subplots()
    shade(axes, 1.0, vertical=True)
    place, ticks, ends = 0.0, list[tuple[float, str]](), [-0.6]
    for result in decided:
        place = _claim(axes, result, place, ticks, named)
        ends.append(place - 0.5)
        place += 0.1
    for low, high in list(pairwise(ends))[1::2]:
        axes.axhspan(low, high, color="#000000", alpha=0.035, linewidth=0, zorder=0)
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(ends[-1], -0.6)
    axes.set_xlim(-REACH, REACH)
    axes.set_xlabel("effect in units of the comparison's margin")
    handles = [Line2D([], [], color=c, marker=m, markersize=4.5, linewidth=1.3) for c, m in LOOKS.values()]
    figure.legend(handles, list(LOOKS), loc="outside lower center", ncols=len(LOOKS))
    return figure


def _claim(
    axes: Axes, result: ClaimResult, place: float, ticks: list[tuple[float, str]], named: Callable[[str], str]
) -> float:
    """The rows of one claim; the height below them."""
    verdict = result.outcome
    colour, _ = LOOKS.get(verdict, ("#888888", "o"))
    beside = axes.get_yaxis_transform()
    # Above the first row, at the left of the panel.
    axes.text(
        -0.012, place, result.name.replace("_", " "), transform=beside, ha="right", va="center", fontsize=7,
        fontweight="bold",
    )  # fmt: skip
    first = place + 0.9
    rows = list(zip(result.claim.comparisons, result.findings, strict=False))
    for i, (c, finding) in enumerate(rows):
        interval = Interval(*(value / c.margin for value in (finding.effect, finding.low, finding.high)))
        shown, marker = LOOKS[finding.verdict]
        clipped(axes, first + i, interval, (-REACH, REACH), shown, marker)
        ticks.append((first + i, _text(c, named)))
    last = first + max(1, len(rows)) - 1
    if not rows:
        axes.text(0, last, "not tested", ha="center", va="center", fontsize=6.5, color="#888888", style="italic")
    axes.text(
        1.025, (place + last) / 2, SHORT.get(verdict, verdict), transform=beside, ha="left", va="center", fontsize=7,
        color=colour, fontweight="bold",
    )  # fmt: skip
    return last + 1


def _text(c: Comparison, named: Callable[[str], str]) -> str:
    """`entropy: TEPO − DAPO`, `learning curve by samples: TEPO − GRPO`; settings that both arms have are named once."""
    data = c.model_dump()
    what = WHAT.get(c.metric or c.statistic, (c.metric or c.statistic).replace("_", " "))
    what += " by samples" if data.get("by") == "samples" else ""
    what += f" after {updates_text(data['updates'])}" if data.get("updates") else ""
    first, settings = c.of.partition("+")[::2]
    one = first if settings and settings == c.than.partition("+")[2] else c.of
    return f"{what}: {named(one)} − {named(c.than)}"
