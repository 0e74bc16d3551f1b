"""Figures with a line per arm: metrics by training step, and pass@k by k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis import accuracy
from ..analysis.statistics import over_seeds
from ..errors import NoResults
from ..evaluate.scores import pass_at_k as unbiased
from ..evaluate.scores import powers_of_two
from ..initial_models import by_unit
from ..paths import START
from ..results import StudyResults
from ..study import Study
from . import catalogue
from .labels import labels, name_of
from .style import WIDE, Look, from_zero, legend, looks

WIDE_RANGE = 30  # largest over smallest value from which an axis is logarithmic


class Panel(NamedTuple):
    """A metric of training steps, none of which is below 0, and how it is drawn."""

    metric: str
    title: str
    scale: float = 1
    smooth: int = 3  # steps that each seed is averaged over
    most: float = np.inf  # its largest possible value, scaled
    geometric: bool = False  # geometric means, because a single run can be larger by orders of magnitude


GRADIENT_NORM = Panel("gradient_norm", "gradient norm before clipping", geometric=True)
ENTROPY = Panel("entropy_old", "entropy (nats per token)")
SAMPLED = Panel("sampled_accuracy", "accuracy of samples (%)", scale=100, most=100)


@dataclass(frozen=True)
class ByStep:
    """A figure of training: a panel per metric, in it the mean of each arm over seeds with its 95% interval."""

    arms: Callable[[Study], Sequence[str]]
    size: tuple[float, float]
    panels: Sequence[Panel]
    rows: int = 1
    ylabel: str = ""  # of panels with one axis, which begins with 0

    def __call__(self, results: StudyResults) -> Figure:
        """Draw it. NoResults if none of its arms was trained."""
        arms = self.arms(results.study)
        if not results.steps["arm"].isin(arms).any():
            raise NoResults(f"{results.folder.path}: none of {', '.join(arms)} was trained. Run `snakemake all`.")
        figure = Figure(figsize=self.size)
        grid = figure.subplots(self.rows, len(self.panels) // self.rows, sharey=bool(self.ylabel), squeeze=False).flat
        for axes, panel in zip(grid, self.panels, strict=True):
            _draw(axes, results, arms, panel)
        if self.ylabel:
            from_zero(figure.axes[0])
            figure.axes[0].set_ylabel(self.ylabel)
        legend(figure)
        return figure


dynamics = ByStep(
    catalogue.headline,
    (WIDE, 4.0),
    (
        Panel("validation_accuracy", "validation accuracy (%)", scale=100, smooth=1, most=100),  # the same problems
        GRADIENT_NORM,
        ENTROPY,
        Panel("response_length_mean", "response length (tokens)"),
    ),
    rows=2,
)
# Share of response tokens whose gradient is 0 because of the clip. Published ranges of different ratios clip shares of
# different orders of magnitude.
clip_ratio = ByStep(
    catalogue.headline,
    (WIDE * 0.9, 2.4),
    (
        Panel("clip_fraction_low", "clipped below (ratio < 1 − ε)", scale=100, most=100),
        Panel("clip_fraction_high", "clipped above (ratio > 1 + ε)", scale=100, most=100),
    ),
    ylabel="tokens clipped (%)",
)
entropy_regularisation = ByStep(catalogue.entropy_arms, (WIDE * 0.8, 2.2), (ENTROPY, SAMPLED))
# The arms differ only in the ratio and its clip range.
importance_sampling = ByStep(
    catalogue.ratio_arms,
    (WIDE, 2.2),
    (
        SAMPLED,
        Panel("effective_sample_share", "effective sample share", most=1),
        GRADIENT_NORM._replace(title="gradient norm"),
    ),
)


def _draw(axes: Axes, results: StudyResults, arms: Sequence[str], panel: Panel) -> None:
    """The curves of one metric, on a logarithmic axis where its geometric means are far apart."""
    arm_looks = looks(results.study)
    for arm in arms:
        _curve(axes, results, arm, panel, arm_looks[arm])
    axes.set_title(panel.title)
    axes.set_xlabel("training step")
    beside = [one for one in axes.get_shared_y_axes().get_siblings(axes) if one.lines]
    limits = np.array([one.dataLim.intervaly for one in beside] or [[0, 1]])
    least, most = limits.min(), limits.max()
    if panel.geometric and most > WIDE_RANGE * least:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.05 * most or 1)


def _curve(axes: Axes, results: StudyResults, arm: str, panel: Panel, look: Look) -> None:
    """The mean over seeds by step, with a band of 95% that is cut at the smallest and largest possible value."""
    steps = results.steps
    if panel.metric not in steps:  # no run of the study has made an optimizer step
        return
    rows = steps[(steps["arm"] == arm) & steps[panel.metric].notna()].sort_values("step")
    if rows.empty:  # dynamic sampling may have dropped every group of every step
        return
    table = panel.scale * rows.pivot(index="step", columns="seed", values=panel.metric)
    if panel.geometric:
        table = table.where(table > 0).map(np.log)  # a norm of 0 has no logarithm
    table = table.rolling(panel.smooth, min_periods=1, center=True).mean().dropna(how="all")
    if table.empty:  # all norms are 0
        return
    units = by_unit(results.study, table.columns, table.to_numpy(dtype=float).T).T
    intervals = np.array([over_seeds(v[~np.isnan(v)]) for v in units])
    intervals = (np.exp(intervals) if panel.geometric else intervals).clip(0, panel.most)
    every = max(1, len(table) // 8)
    axes.plot(
        table.index, intervals[:, 0], markevery=every, markersize=3, linewidth=1.2, label=name_of(results, arm), **look
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if table.shape[1] > 1:
        axes.fill_between(table.index, intervals[:, 1], intervals[:, 2], color=look["color"], alpha=0.13, linewidth=0)


def pass_at_k(results: StudyResults) -> Figure:
    """A panel per benchmark with several responses per problem; 95% intervals over seeds and problems."""
    responses = results.evaluations.drop_duplicates("benchmark").set_index("benchmark")["n"]
    names = catalogue.sampled_benchmarks(results.study)
    label, arm_looks = labels(results.study), looks(results.study)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(WIDE * max(0.45, columns / 4), 1.9 * rows + 0.4))
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, name in zip(panels, names, strict=False):
        n = int(responses[name])
        ks = powers_of_two(n)
        for arm in (START, *catalogue.evaluated_headline(results.study)):
            samples = results.evaluations.query("arm == @arm and benchmark == @name")
            correct = np.rint(np.array(samples["per_problem"].tolist()) * n).astype(int).tolist()
            by_seed = [np.array([[unbiased(n, c, k) for c in row] for row in correct]) for k in ks]
            scores = [by_unit(results.study, samples["seed"], values) for values in by_seed]
            mean, low, high = np.array([accuracy([score])[:3] for score in scores]).T * 100
            axes.plot(ks, mean, markersize=3, linewidth=1.1, label=label(arm), **arm_looks[arm])
            axes.fill_between(ks, low, high, color=arm_looks[arm]["color"], alpha=0.12, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set_ylim(0, 100)
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("k (samples)")
    for axes in figure.axes[len(names) :]:
        axes.remove()
    figure.axes[0].set_ylabel("pass@k (%)")
    legend(figure)
    return figure
