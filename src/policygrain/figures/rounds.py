"""One round by each method from the same rollouts: paired differences after the last update."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..results.reader import StudyResults
from .forest import row, shade
from .measured import MARGIN_OF_ROUNDS, round_difference, round_reference, round_updates
from .style import WIDE, labels, legend


def draw(results: StudyResults) -> Figure:
    """A row per method, sorted: mean over start models with 95% interval, and a small mark per start model."""
    reference, last = round_reference(results), round_updates(results)[-1]
    label = labels(results.study)
    names = [name for name in dict.fromkeys(results.rounds["method"]) if name != reference]
    found = {name: round_difference(results, name, reference, last) for name in names}
    names.sort(key=lambda name: -float(found[name].mean()))
    figure = Figure(figsize=(WIDE * 0.95, 0.9 + 0.24 * len(names)))
    axes = figure.subplots()
    shade(axes, MARGIN_OF_ROUNDS, vertical=True)
    for place, name in enumerate(names):
        row(axes, place, found[name].to_numpy())
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(f"accuracy after {last} updates from the same rollouts,\nminus that of {label(reference)} (points)")
    legend(figure)
    return figure
