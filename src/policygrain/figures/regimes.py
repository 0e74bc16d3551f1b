"""Each method minus the reference, a panel per regime."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..analysis.contrasts import Contrast, by_regime, contrasts, regime_text
from ..analysis.statistics import Interval
from ..results.reader import StudyResults
from ..study.runs import Arm
from .forest import clipped
from .style import ABOVE, FULL_PAGE, GREY, labels, legend, ratio_look

REACH = 15.0  # points; an interval that goes on has an arrow
FINAL = {"color": "#9a9a9a", "marker": ".", "linestyle": "-"}
OFFSETS = {"area": 0.0, "final, sampled": -0.24, "final, greedy": -0.42}


def draw(results: StudyResults) -> Figure:
    """Differences in points with 95% intervals: the area in colour, final accuracy beneath it in grey."""
    study, label = results.study, labels(results.study)
    experiments = [e for e in study.experiments.values() if e.reference is not None]
    references = {e.reference for e in experiments}
    methods = list(dict.fromkeys(m for e in experiments for m in e.methods if m not in references))
    found = [c for c in contrasts(results) if c.pair.reference.method_name in references and _same_settings(c)]
    regimes = by_regime(study, found)
    figure = Figure(figsize=(FULL_PAGE, 0.95 + 0.36 * len(methods)))
    panels = figure.subplots(1, len(regimes), sharex=True, sharey=True, squeeze=False).flat
    for axes, (regime, group) in zip(panels, regimes.items(), strict=True):
        axes.axvline(0, color=GREY, linewidth=0.8)
        for c in group:
            _row(axes, len(methods) - methods.index(c.pair.arm.method_name), c, results)
        axes.set_title(regime_text(regime).replace(", ", ",\n"))
        axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(methods), 0, -1), [label(m) for m in methods])
    axes.set_xlim(-REACH, REACH)
    axes.set_ylim(0.3, len(methods) + 0.45)
    figure.supxlabel(f"points minus {' / '.join(label(str(r)) for r in sorted(map(str, references)))}", fontsize=8)
    area = Line2D([], [], color="black", marker="o", label="area under the curve (filled: shown to differ)")
    final = Line2D([], [], color=FINAL["color"], marker=".", label="final accuracy: sampled, below it greedy")
    legend(figure, ([area, final], [str(area.get_label()), str(final.get_label())]), ABOVE)
    return figure


def _same_settings(c: Contrast) -> bool:
    return c.pair.arm.settings == c.pair.reference.settings


def _row(axes: Axes, y: int, c: Contrast, results: StudyResults) -> None:
    """A method's three endpoints; a filled marker where the areas are shown to differ."""
    look = ratio_look(Arm(c.pair.arm.method_name).method(results.study).ratio.name)
    if c.decided:
        look = {**look, "markerfacecolor": look["color"]}
    for (name, down), endpoint in zip(OFFSETS.items(), (c.area, c.sampled, c.greedy), strict=True):
        if endpoint is not None:
            interval = Interval(endpoint.mean, endpoint.low, endpoint.high)
            clipped(axes, y + down, interval, (-REACH, REACH), look if name == "area" else FINAL)
