"""pass@k of the start model and the headline methods, by the unbiased estimator."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis import accuracy
from ..errors import UserError
from ..evaluate.scores import pass_at_k, powers_of_two
from ..results.layout import START
from ..results.reader import StudyResults
from .measured import headline
from .style import WIDE, labels, legend, looks


def draw(results: StudyResults) -> Figure:
    """A panel per benchmark with several responses per problem; 95% intervals over seeds and problems."""
    responses = results.evaluations.drop_duplicates("benchmark").set_index("benchmark")["n"]
    names = [b for b in results.benchmarks if responses.get(b, 1) > 1]
    if not names:
        raise UserError(
            "pass_at_k: every benchmark has one response per problem; add `sampling: {n: 8, temperature: 1.0}` to "
            "one in `evaluation.benchmarks` and run `snakemake all`."
        )
    arms = [START, *headline(results)]
    label, found = labels(results.study), looks(results.study)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(WIDE * max(0.45, columns / 4), 1.9 * rows + 0.4))
    panels = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).flatten()
    for axes, name in zip(panels, names, strict=False):
        n = int(responses[name])
        for arm in arms:
            correct = np.rint(results.scores(arm, name) * n).astype(int)
            ks = powers_of_two(n)
            points = [accuracy([np.array([[pass_at_k(n, c, k) for c in row] for row in correct.tolist()])]) for k in ks]
            style = found[arm]
            axes.plot(ks, [100 * p.mean for p in points], markersize=3, linewidth=1.1, label=label(arm), **style)
            axes.fill_between(
                ks, [100 * p.low for p in points], [100 * p.high for p in points], color=style["color"], alpha=0.12,
                linewidth=0,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set_ylim(0, 100)
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("k (samples)")
    for axes in panels[len(names) :]:
        axes.remove()
    panels[0].set_ylabel("pass@k (%)")
    legend(figure)
    return figure
