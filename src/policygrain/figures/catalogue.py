"""The figures of a study: functions of its records and of what they show, registered by `figure`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..analysis import accuracy, measures
from ..analysis.run_claims import Run, RunClaim
from ..analysis.statistics import Interval, median, over_seeds
from ..errors import NoResults, UserError, did_you_mean
from ..evaluate.scores import pass_at_k as unbiased
from ..evaluate.scores import powers_of_two
from ..paths import START
from ..results import StudyResults, mean_by_unit
from . import TABLES, style, tables
from .shown import evaluated_headline, labels, name_of, shown_by

Drawing = Callable[[StudyResults, Any], Figure]
FIGURES: dict[str, Drawing] = {}


def figure(draw: Drawing) -> Drawing:
    """Register a function as the figure of its name; the first line of its docstring is the title in reports."""
    FIGURES[draw.__name__] = draw
    return draw


def draw(name: str, results: StudyResults, out: Path | None = None) -> None:
    """Draw figure ``name`` to ``out``.pdf, .svg and .png, or write table ``name`` to ``out``.csv and .md.

    By default, ``out`` is its place in the results of the study. UserError if the study lacks what the figure shows.
    """
    if name in TABLES:
        tables.write(name, results, out or results.folder.table(name))
    elif name in FIGURES:
        style.save(FIGURES[name](results, shown_by(name, results.study)), out or results.folder.figure(name))
    else:
        raise UserError(f"there is no figure or table {name!r}.{did_you_mean(name, (*FIGURES, *TABLES))}")


# ---- accuracy of final models ----------------------------------------------------------------------------------------


@figure
def benchmarks(results: StudyResults, shown: Sequence[str]) -> Figure:
    """Accuracy of the initial model and the headline methods, by benchmark and on average (TEPO's figure 1)."""
    arms, arm_looks = [START, *shown], style.looks(results.study)
    of = [[name] for name in results.benchmarks] + [results.averaged]  # the last one is the average
    figure, (axes,) = style.panels(1, 1, 2.4, style.PAGE)
    for i, arm in enumerate(arms):
        style.points(
            axes,
            np.arange(len(of)) + 0.72 * ((i + 0.5) / len(arms) - 0.5),  # beside each other
            [measures.final_accuracy(results, arm, *names)[:3] for names in of],
            label=name_of(results, arm),
            **{**arm_looks[arm], "linestyle": "", "markersize": 7 if arm == START else 4},
            **{"elinewidth": 1.1, "capsize": 1.5},
        )
    for place in range(1, len(of)):
        axes.axvline(place - 0.5, color="#666666", linewidth=0.8 if place == len(of) - 1 else 0.25)
    texts = [*(name.replace("_", " ") for name in results.benchmarks), "average"]
    axes.set_xticks(range(len(of)), texts, rotation=20, ha="right", rotation_mode="anchor")
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.5, len(of) - 0.5), ylim=(0, None), ylabel="accuracy (%)")
    style.legend(figure)
    return figure


@figure
def sweep(results: StudyResults, shown: Mapping[str, Mapping[str, float]]) -> Figure:
    """Accuracy of the final models by a parameter of the method."""
    figure, grid = style.panels(len(shown), 2, 2.0, sharey=True)
    for axes, (parameter, values) in zip(grid, shown.items(), strict=True):
        value_of = dict(sorted(values.items(), key=lambda item: item[1]))
        places = list(value_of.values())
        intervals = [measures.final_accuracy(results, arm)[:3] for arm in value_of]
        style.points(axes, places, intervals, **style.PLAIN, markersize=4, elinewidth=0.8, capsize=2)
        for arm, place in value_of.items():
            rows = results.evaluations[results.evaluations["arm"] == arm]
            rows = rows[rows["benchmark"].isin(results.averaged)]
            by_seed = 100 * rows.groupby("seed")["accuracy"].mean()
            marks = {"color": style.PLAIN["color"], "markersize": 5, "alpha": 0.6}
            axes.plot(np.full(len(by_seed), place), by_seed, "_", **marks)
        axes.set_xticks(places, [f"{value:g}" for value in places])
        axes.margins(x=0.15)
        axes.set_xlabel(textwrap.fill(parameter, 22))
    grid[0].set_ylabel("accuracy (%)")
    return figure


@figure
def pass_at_k(results: StudyResults, shown: Sequence[str]) -> Figure:
    """pass@k of the initial model and the headline methods, by the unbiased estimator."""
    responses = results.evaluations.drop_duplicates("benchmark").set_index("benchmark")["n"]
    label, arm_looks = labels(results.study), style.looks(results.study)
    figure, grid = style.panels(len(shown), 4, 2.0)
    for axes, name in zip(grid, shown, strict=True):
        n = int(responses[name])
        rows = results.evaluations.query("benchmark == @name")
        if any(sum(o.values()) != n * p for o, p in zip(rows["outcomes"], rows["problems"], strict=True)):
            raise UserError(f"figures: pass_at_k: {name} repeats some problems more than others.")
        ks = powers_of_two(n)
        for arm in (START, *evaluated_headline(results.study)):
            samples = results.evaluations.query("arm == @arm and benchmark == @name")
            correct = np.rint(np.array(samples["per_problem"].tolist()) * n).astype(int).tolist()
            by_seed = [np.array([[unbiased(n, c, k) for c in row] for row in correct]) for k in ks]
            scores = [mean_by_unit(results.study, samples["seed"], values) for values in by_seed]
            mean, low, high = np.array([accuracy([score])[:3] for score in scores]).T * 100
            axes.plot(ks, mean, markersize=3, linewidth=1.1, label=label(arm), **arm_looks[arm])
            axes.fill_between(ks, low, high, color=arm_looks[arm]["color"], alpha=0.12, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set(ylim=(0, 100), title=name.replace("_", " "), xlabel="k (samples)")
    grid[0].set_ylabel("pass@k (%)")
    style.legend(figure)
    return figure


# ---- metrics by training step ----------------------------------------------------------------------------------------

WIDE_RANGE = 30  # largest over smallest value from which an axis is logarithmic


class Panel(NamedTuple):
    """A metric of training steps, none of which is below 0, and how it is drawn."""

    metric: str
    title: str
    scale: float = 1
    smooth: int = 3  # steps that each seed is averaged over
    most: float = np.inf  # its largest possible value, scaled
    geometric: bool = False  # geometric means, because a single run can be larger by orders of magnitude


GRADIENT_NORM = Panel("gradient_norm", "gradient norm", geometric=True)
ENTROPY = Panel("entropy_old", "entropy (nats)")
SAMPLED = Panel("sampled_accuracy", "sampled accuracy (%)", scale=100, most=100)


@figure
def dynamics(results: StudyResults, shown: Sequence[str]) -> Figure:
    """Accuracy, gradient norm, entropy and response length during training (after TEPO's figure 3).

    Validation is on the same problems for all arms, so it is not smoothed.
    """
    validation = Panel("validation_accuracy", "validation accuracy (%)", scale=100, smooth=1, most=100)
    length = Panel("response_length_mean", "response length (tokens)")
    return _by_step(results, shown, (validation, GRADIENT_NORM, ENTROPY, length))


@figure
def clip_ratio(results: StudyResults, shown: Sequence[str]) -> Figure:
    """Clip fraction by step, below and above the range (after TEPO's figure 2)."""
    low = Panel("clip_fraction_low", "ratio below 1 − ε", scale=100, most=100)
    high = Panel("clip_fraction_high", "ratio above 1 + ε", scale=100, most=100)
    figure = _by_step(results, shown, (low, high), sharey=True)
    axes, least = figure.axes[0], 0.01
    axes.set_yscale("symlog", linthresh=least, linscale=0.5)  # linear from 0 to the least share
    _, most = axes.set_ylim(0)
    ticks = [0, *(power for power in (least * 10**i for i in range(8)) if power <= most)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("tokens clipped (%)")
    return figure


@figure
def entropy_regularisation(results: StudyResults, shown: Sequence[str]) -> Figure:
    """Entropy and accuracy of TEPO with its penalty, an entropy bonus or KL on all tokens (after TEPO's figure 4)."""
    return _by_step(results, shown, (ENTROPY, SAMPLED))


@figure
def importance_sampling(results: StudyResults, shown: Sequence[str]) -> Figure:
    """Importance-sampling levels with the same sparse reward, and training without a ratio (after TEPO's figure 5)."""
    share = Panel("effective_sample_share", "effective sample share", most=1)
    return _by_step(results, shown, (SAMPLED, share, GRADIENT_NORM))


def _by_step(results: StudyResults, arms: Sequence[str], metrics: Sequence[Panel], sharey: bool = False) -> Figure:
    """A panel per metric, in it the mean of each arm over seeds with its 95% interval; NoResults without any run."""
    if not results.steps["arm"].isin(arms).any():
        raise NoResults(f"{results.folder.path}: none of {', '.join(arms)} was trained. Run `snakemake all`.")
    figure, grid = style.panels(len(metrics), 4, 1.9, sharey=sharey)
    arm_looks = style.looks(results.study)
    for axes, panel in zip(grid, metrics, strict=True):
        for arm in arms:
            _curve(axes, results, arm, panel, arm_looks[arm])
        axes.set(title=panel.title, xlabel="training step")
        beside = [one for one in axes.get_shared_y_axes().get_siblings(axes) if one.lines]
        limits = np.array([one.dataLim.intervaly for one in beside] or [[0, 1]])
        if panel.geometric and limits.max() > WIDE_RANGE * limits.min():
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.05 * limits.max() or 1)
    style.legend(figure)
    return figure


def _curve(axes: Axes, results: StudyResults, arm: str, panel: Panel, look: style.Look) -> None:
    """The mean over seeds by step, with a band of 95% that is cut at the smallest and largest possible value."""
    steps = results.steps
    if panel.metric not in steps:  # no run of the study has made an optimizer step
        return
    rows = steps[(steps["arm"] == arm) & steps[panel.metric].notna()].sort_values("step")
    table = panel.scale * rows.pivot(index="step", columns="seed", values=panel.metric)
    if panel.geometric:
        table = table.where(table > 0).map(np.log)  # a norm of 0 has no logarithm
    table = table.rolling(panel.smooth, min_periods=1, center=True).mean().dropna(how="all")
    if table.empty:  # all norms are 0, or dynamic sampling dropped every group of every step
        return
    units = mean_by_unit(results.study, table.columns, table.to_numpy(dtype=float).T).T
    intervals = np.array([over_seeds(v[~np.isnan(v)]) for v in units])
    mean, low, high = (np.exp(intervals) if panel.geometric else intervals).clip(0, panel.most).T
    every = max(1, len(table) // 8)
    axes.plot(table.index, mean, markevery=every, markersize=3, linewidth=1.2, label=name_of(results, arm), **look)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if units.shape[1] > 2:
        axes.fill_between(table.index, low, high, color=look["color"], alpha=0.13, linewidth=0)
    elif units.shape[1] == 2:  # their interval would cover the panel
        axes.plot(
            table.index, np.exp(units) if panel.geometric else units, color=look["color"], alpha=0.4, linewidth=0.5
        )


# ---- cost ------------------------------------------------------------------------------------------------------------

COSTS = {"steps": "optimizer steps", "tokens": "generated tokens", "seconds": "seconds of training"}  # titles
COST_TICKS = {0.25: "≤ ¼", 0.5: "½", 1: "1", 2: "2", 4: "4", 8: "≥ 8"}


@figure
def convergence(results: StudyResults, shown: Sequence[str]) -> Figure:
    """The cost of each method to reach the final accuracy of GRPO, relative to GRPO."""
    arm_looks, label, ends = style.looks(results.study), labels(results.study), (min(COST_TICKS), max(COST_TICKS))
    figure, grid = style.panels(len(COSTS), len(COSTS), 0.8 + 0.3 * len(shown), sharey=True)
    for axes, (by, title) in zip(grid, COSTS.items(), strict=True):
        axes.axvline(1, color="#000000", linewidth=0.8)
        axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=(0, (3, 2)))
        for place, arm in enumerate(shown):
            values = measures.by_unit(results, measures.reached(results, arm, "grpo", by))
            if not len(values):
                axes.text(1, place, "not logged", ha="center", va="center", color=style.GREY)
                continue
            marks = {"color": arm_looks[arm]["color"], "markersize": 5, "alpha": 0.6}
            axes.plot(np.clip(2**values, *ends), np.full(len(values), place + 0.24), "|", **marks)
            style.interval_row(axes, place, Interval(*(2.0**end for end in median(values))), arm_looks[arm], ends)
        axes.set_xscale("log", base=2)
        axes.set(xlim=ends, title=title, xlabel="ratio to GRPO")
        axes.set_xticks(list(COST_TICKS), list(COST_TICKS.values()))
        axes.minorticks_off()
        axes.tick_params(axis="y", length=0)
    style.named_rows(grid[0], [label(arm) for arm in shown], below=0.5)
    return figure


# ---- claims on runs of any trainer -----------------------------------------------------------------------------------


def draw_claim(decided: RunClaim, a: Sequence[Run], b: Sequence[Run], out: Path) -> None:
    """Draw both sides' curves and the difference of their endpoints to ``out``, a file with one of SUFFIXES."""
    figure = Figure(figsize=(style.PAGE, 2.2))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for side, runs, colour, line in (("a", a, style.BLUE, "-"), ("b", b, style.ORANGE, "--")):
        for run in runs:
            drawn = {"color": colour, "linestyle": line, "linewidth": 0.8, "alpha": 0.8}
            left.plot(run.steps, run.values, label=f"{side} ({len(runs)} runs)" if run is runs[0] else None, **drawn)
    left.set(xlabel="step", ylabel=decided.metric)
    left.legend()
    d, margin = decided.difference, decided.margin or 0.0
    right.axvspan(-margin, margin, color="#999999", alpha=0.16, linewidth=0, zorder=0)
    right.axvline(0, color="#000000", linewidth=0.7)
    shown = [v for v in (d.low, d.high, *d.values, d.mean, 0.0) if np.isfinite(v)]
    style.interval_row(right, 0, d.interval, style.look("#333333", "o"), (min(shown), max(shown)))
    right.plot(d.values, np.full(len(d.values), 0.25), "|", color="#333333")  # runs
    right.set(ylim=(-0.6, 0.6), yticks=[], xlabel="a − b", title=decided.verdict)
    right.locator_params(axis="x", nbins=5)
    figure.savefig(out)
