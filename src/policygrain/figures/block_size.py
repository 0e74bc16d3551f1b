"""Block size K (after MPO): one round by each size, or the accuracy of final models."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import measures
from ..results.reader import StudyResults
from .forest import PLAIN, line, shade
from .measured import MARGIN_OF_ROUNDS, round_difference, round_updates
from .requirements import block_methods
from .style import ABOVE, COLUMN, legend
from .sweeps import accuracy_interval, against, arms_by

BASE = 5.0  # MPO's K, which differences are to


def draw(results: StudyResults) -> Figure:
    """By K: the reward after a round minus that with K = 5; where no round has several sizes, final accuracy."""
    rounds = results.study.rounds
    found = block_methods(results.study, rounds.methods, "size") if rounds else {}
    figure = Figure(figsize=(COLUMN, 2.2))
    axes = figure.subplots()
    axes.set_xlabel("block size K (tokens)")
    if len(found) > 1:
        last, base = round_updates(results)[-1], found.get(BASE, next(iter(found.values())))
        shade(axes, MARGIN_OF_ROUNDS)
        values = [round_difference(results, name, base, last).to_numpy() for name in found.values()]
        places = np.arange(len(found), dtype=float)
        line(axes, places, values, {**PLAIN, "linestyle": ""})
        for place, each in zip(places, values, strict=True):
            axes.plot(np.full(len(each), place + 0.12), each, "_", color=PLAIN["color"], markersize=5, alpha=0.55)
        axes.set_xticks(places, [f"{size:g}" for size in found])
        axes.set_xlim(-0.5, len(found) - 0.5)
        size = next(key for key, name in found.items() if name == base)
        axes.set_ylabel(f"points, minus K = {size:g},\nafter {last} updates")
        legend(figure, loc=ABOVE)
        return figure
    arms = arms_by(results, "size")
    against(
        axes,
        arms,
        lambda arm: measures.accuracy(results, arm),
        equidistant=True,
        interval=lambda arm: accuracy_interval(results, arm),
    )
    axes.set_ylabel("accuracy (%)")
    return figure
