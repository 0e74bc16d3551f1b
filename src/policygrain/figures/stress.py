"""What a round of updates gains by how stale its samples are: a line per ratio, and the same by start model."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .alike import by_ratio, ratio_text, resolved
from .forest import apart, line, powers_of_two
from .measured import round_gain, round_updates
from .style import WIDE, ratio_look

MOST = 12  # panels of single start models
COLUMNS = 4


def draw(results: StudyResults) -> Figure:
    """Reward minus that before the round, in points: means with 95% intervals over start models; beneath, each one."""
    ticks = round_updates(results)
    names = list(by_ratio(results.study, list(dict.fromkeys(results.rounds["method"]))).values())
    methods = resolved(results.study, names)
    starts = sorted(results.rounds["seed"].unique())[:MOST]
    gains = {name: {u: round_gain(results, name, u) for u in ticks} for name in names}
    columns = min(COLUMNS, len(starts))
    rows = -(-len(starts) // columns)
    figure = Figure(figsize=(WIDE, 2.9 + 1.25 * rows))
    halves = figure.subfigures(2, 1, height_ratios=(2.2, 1.15 * rows), squeeze=False)
    upper, lower = halves[0, 0], halves[1, 0]
    axes = upper.subplots()
    axes.axhline(0, color="#000000", linewidth=0.7)
    for i, name in enumerate(names):
        values = [gains[name][u].to_numpy() for u in ticks]
        line(
            axes,
            apart(ticks, i, len(names), 0.07),
            values,
            {**ratio_look(methods[name].ratio.name), "label": ratio_text(methods[name])},
        )
    powers_of_two(axes, ticks)
    axes.set_xlabel("updates since the rollouts")
    axes.set_ylabel("gain in accuracy (points)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=2.6)
    panels = lower.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for panel, start in zip(panels, starts, strict=False):
        for name in names:
            own = [float(gains[name][u].get(start, float("nan"))) for u in ticks]
            panel.plot(ticks, own, linewidth=0.9, **{**ratio_look(methods[name].ratio.name), "marker": ""})
        panel.axhline(0, color="#000000", linewidth=0.5)
        powers_of_two(panel, ticks)
        panel.set_title(f"start model {start}")
    for panel in panels[len(starts) :]:
        panel.remove()
    panels[0].set_ylabel("gain (points)")
    lower.supxlabel("updates since the rollouts", fontsize=8)
    return figure
