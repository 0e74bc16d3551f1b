"""Accuracy by clip range, a panel per ratio and a line per regime."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import measures
from ..analysis.clip_ranges import EXPERIMENT, candidates
from ..analysis.contrasts import regime_text
from ..results.reader import StudyResults
from .forest import line
from .style import ABOVE, COLUMN, legend, updates_look


def draw(results: StudyResults) -> Figure:
    """The area under the learning curve in percent, with 95% intervals over training seeds."""
    found, study = candidates(results), results.study
    keys = study.experiments[EXPERIMENT].vary
    figure = Figure(figsize=(max(COLUMN, 2.2 * len(found) + 0.5), 2.8))
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False).flat
    for axes, (ratio, ranges) in zip(panels, found.items(), strict=True):
        lines: dict[str, dict[int, str]] = {}
        for place, arms in enumerate(ranges.values()):
            for arm in arms:
                training = arm.training(study)
                regime = regime_text(tuple((key, getattr(training, key)) for key in keys))
                lines.setdefault(regime, {})[place] = arm.name
        for i, (regime, arms_at) in enumerate(lines.items()):
            shifted = np.array(list(arms_at), dtype=float) + 0.09 * (i - (len(lines) - 1) / 2)
            values = [measures.area(results, name).to_numpy() for name in arms_at.values()]
            line(axes, shifted, values, {**updates_look(i, len(lines)), "label": regime})
        axes.set_xticks(range(len(ranges)), [f"{low:g}/\n{high:g}" for low, high in ranges])
        axes.set_title(f"{ratio} ratio")
    figure.supylabel("mean accuracy during training (%)", fontsize=8)
    figure.supxlabel("clip range: width below/above 1", fontsize=8)
    legend(figure, loc=ABOVE)
    return figure
