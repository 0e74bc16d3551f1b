"""Figures with a row per method or comparison, and in it a mean with its interval."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from ..analysis import measures
from ..analysis.claims import ClaimResult, Comparison, Finding, decide_study
from ..analysis.contrasts import Contrast, by_regime, contrasts
from ..analysis.statistics import Interval, over_seeds, ranked
from ..analysis.wording import regime_text
from ..errors import NoResults
from ..results import ALL, StudyResults
from ..study.runs import Arm
from . import catalogue
from .labels import labels, updates_text
from .style import (
    ABOVE,
    BLUE,
    EVERYWHERE,
    FULL_PAGE,
    GREEN,
    GREY,
    ORANGE,
    PLAIN,
    WIDE,
    Look,
    from_zero,
    handles,
    interval_row,
    legend,
    looks,
    named_rows,
    ratio_look,
    seed_marks,
    shade_margin,
    updates_look,
)


def rounds(results: StudyResults) -> Figure:
    """A row per method, sorted: mean over initial models with 95% interval, and a small mark per initial model."""
    reference, last = results.round_records[0].reference, results.rounds["updates"].max()
    label = labels(results.study)
    base = measures.after_round(results, reference)
    names = [name for name in results.rounds["method"].unique() if name != reference]
    values = {name: (measures.after_round(results, name) - base).dropna().to_numpy() for name in names}
    names.sort(key=lambda name: -round(float(values[name].mean()), 9))  # ties in the order of the study
    figure = Figure(figsize=(WIDE * 0.95, 0.9 + 0.24 * len(names)))
    axes = figure.subplots()
    shade_margin(axes, "x")
    for place, name in enumerate(names):
        seed_marks(axes, values[name], place + 0.22, PLAIN, markersize=4.5, alpha=0.55, markeredgewidth=0.8)
        interval_row(axes, place, over_seeds(values[name]), PLAIN)
    named_rows(axes, [label(name) for name in names], below=0.4)
    axes.set_xlabel(f"accuracy after {last} updates from the same rollouts,\nminus that of {label(reference)} (points)")
    legend(figure)
    return figure


ESTIMATED = {
    "bias_cosine": "mean direction:\ncosine with\nthe true gradient",
    "snr": "signal-to-\nnoise ratio\nof one batch",
    "cosine": "one batch:\nmean\ncosine",
    "clip_fraction": "tokens\nclipped (%)",
}
LEAST_SNR = 1e-4  # of a logarithmic axis; an estimate may be below 0, and is drawn at its edge


def estimators(results: StudyResults) -> Figure:
    """A row per estimator, a column per metric: means over initial models with 95% intervals, and each of them."""
    label = labels(results.study)
    names, steps = results.estimators["estimator"].unique(), sorted(results.estimators["updates"].unique())
    figure = Figure(figsize=(WIDE * 1.1, 1.4 + 0.27 * len(names)))
    panels = figure.subplots(1, len(ESTIMATED), sharey=True)
    for axes, (metric, title) in zip(panels, ESTIMATED.items(), strict=True):
        limits = (LEAST_SNR, np.inf) if metric == "snr" else EVERYWHERE
        for i, updates in enumerate(steps):
            style, shift = updates_look(i, len(steps)), 0.34 * ((i + 0.5) / len(steps) - 0.5) * 2
            for place, name in enumerate(names):
                values = measures.estimated_by_start(results, name, metric, updates)
                if metric == "clip_fraction" and not values.any():  # it has no clip
                    continue
                seed_marks(axes, values[values > limits[0]], place + shift, style, markersize=4, alpha=0.45)
                interval_row(axes, place + shift, over_seeds(values), style, limits)
        axes.set_title(title)
    panels[0].axvline(1, color="#000000", linewidth=0.6)
    panels[2].axvline(0, color="#000000", linewidth=0.6)
    panels[1].set_xscale("log")
    from_zero(panels[3], "x", least=0.1)
    for axes in panels:
        named_rows(axes, [label(name) for name in names], below=0.45)
    texts = [f"{updates_text(updates)} after the rollouts" for updates in steps]
    legend(figure, (handles(updates_look(i, len(steps)) for i in range(len(steps))), texts))
    return figure


COSTS = {"steps": "optimizer\nsteps", "tokens": "generated\ntokens", "seconds": "seconds of\ntraining"}
COST_TICKS = {2.0**k: f"{2**k}" if k >= 0 else {-1: "½", -2: "¼", -3: "⅛"}[k] for k in range(-3, 6)}


def convergence(results: StudyResults) -> Figure:
    """A panel per cost: ratio to GRPO by seed or initial model, median with 95% interval; dashed line: half.

    A run that never reaches the accuracy has an infinite ratio.
    """
    arms = catalogue.beside_grpo(results.study)
    ratios = {
        by: [measures.by_unit(results, measures.reached(results, arm, "grpo", by)) for arm in arms] for by in COSTS
    }
    # As wide as the seeds lie, so that a single wide interval does not hide the others.
    every = np.concatenate([v for values in ratios.values() for v in values])
    low, high = (
        max(-3.0, min(-1.5, every.min() - 0.3)),
        min(5.0, max(1.5, every.max() + 0.3)),
    )  # infinite ratios count as 5
    limits, arm_looks, label = (2**low, 2**high), looks(results.study), labels(results.study)
    ticks = {value: text for value, text in COST_TICKS.items() if limits[0] <= value <= limits[1]}
    figure = Figure(figsize=(WIDE * 0.95, 0.95 + 0.42 * len(arms)))
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (by, title) in zip(panels, COSTS.items(), strict=True):
        axes.axvline(1, color="#000000", linewidth=0.8)
        axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=(0, (3, 2)))
        for place, (arm, values) in enumerate(zip(arms, ratios[by], strict=True)):
            seed_marks(axes, 2 ** np.minimum(values, 60.0), place + 0.24, arm_looks[arm], markersize=5, alpha=0.6)
            interval = ranked(values).interval.map(lambda v: 2.0 ** min(v, 60.0))
            interval_row(axes, place, interval, arm_looks[arm], limits)
        axes.set_xscale("log", base=2)
        axes.set_xlim(*limits)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("ratio to GRPO")
    named_rows(panels[0], [label(arm) for arm in arms], below=0.5)
    return figure


REACH_OF_REGIMES = 15.0  # points, or more if intervals of areas are wider; an arrow shows that an interval is cut off
FINAL: Look = {"color": "#9a9a9a", "marker": ".", "linestyle": "-"}


def regimes(results: StudyResults) -> Figure:
    """Differences in points with 95% intervals: the area in colour, final accuracy beneath it in grey.

    A row is a method, or where experiments have several references, a method and its reference.
    """
    study, label = results.study, labels(results.study)
    references = catalogue.references(study)
    pairs = [
        c
        for c in contrasts(results)
        if c.pair.reference.method_name in references and c.pair.arm.settings == c.pair.reference.settings
    ]
    if not pairs:
        raise NoResults(f"{results.folder.path}: no two arms that are compared have been trained. {ALL}")
    rows = list(dict.fromkeys(_methods(c) for c in sorted(pairs, key=lambda c: references.index(_methods(c)[1]))))
    by_settings = by_regime(study, pairs)
    ends = [abs(end) for c in pairs for end in (c.area.low, c.area.high) if np.isfinite(end)]
    reach = 5 * np.ceil(max([REACH_OF_REGIMES, *ends]) / 5)
    limits = (-reach, reach)
    figure = Figure(figsize=(FULL_PAGE, 0.95 + 0.36 * len(rows)))
    panels = figure.subplots(1, len(by_settings), sharex=True, sharey=True, squeeze=False).flat
    for axes, (regime, group) in zip(panels, by_settings.items(), strict=True):
        axes.axvline(0, color=GREY, linewidth=0.8)
        for c in group:
            y = len(rows) - rows.index(_methods(c))
            look = ratio_look(Arm(c.pair.arm.method_name).method(study).ratio.name)
            filled = look | {"markerfacecolor": look["color"]} if c.decided else look
            for d, down, style in ((c.area, 0.0, filled), (c.sampled, 0.24, FINAL), (c.greedy, 0.42, FINAL)):
                if d is not None:
                    interval_row(axes, y - down, d.interval, style, limits)
        axes.set_title(regime_text(regime).replace(", ", ",\n"))
        axes.grid(visible=False, axis="y")
    one = len(references) == 1
    axes.set_yticks(range(len(rows), 0, -1), [label(m) if one else f"{label(m)} −\n{label(r)}" for m, r in rows])
    axes.set_xlim(*limits)
    axes.set_ylim(0.3, len(rows) + 0.45)
    figure.supxlabel(f"points minus {label(references[0])}" if one else "points", fontsize=8)
    shown = [Line2D([], [], color="black", marker="o"), Line2D([], [], color=FINAL["color"], marker=".")]
    texts = ["mean validation accuracy (filled: shown to differ)", "final accuracy: sampled, below it greedy"]
    legend(figure, (shown, texts), ABOVE)
    return figure


def _methods(contrast: Contrast) -> tuple[str, str]:
    return contrast.pair.arm.method_name, contrast.pair.reference.method_name


# ---- claims ---------------------------------------------------------------------------------------------------------

REACH_OF_CLAIMS = 6.0  # half widths of an interval; an arrow shows that an interval is cut off
VERDICTS: dict[str, Look] = {
    "holds": {"color": GREEN, "marker": "^"},
    "opposite": {"color": ORANGE, "marker": "v"},
    "smaller than published": {"color": BLUE, "marker": "s"},
    "inconclusive": {"color": GREY, "marker": "o"},
}
RELATIONS = {"above": ">", "below": "<", "apart": "≠"}
HEADING, BESIDE = 92, 22  # characters per line: of a claim's text, and of its verdict
STATISTICS = {
    "benchmarks": "benchmarks won",
    "drop": "largest fall of accuracy",
    "round": "one round",
    "snr": "signal to noise",
    "steps": "steps needed",
    "tokens": "tokens needed",
}


def verdicts(results: StudyResults) -> Figure:
    """A row per comparison, grouped by claim, with 95% intervals over its unit of replication."""
    return draw_claims(decide_study(results), labels(results.study))


def draw_claims(decided: list[ClaimResult], label: Callable[[str], str]) -> Figure:
    """The figure of these claims; ``label`` gives the name of an arm."""
    headings = [textwrap.wrap(result.claim.text, HEADING) for result in decided]
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
        first = place + 0.8 * len(heading) + 0.4
        for i, (c, finding) in enumerate(zip(result.claim.comparisons, result.findings, strict=False)):
            _draw_comparison(axes, first + i, c, finding)
            ticks.append((first + i, _comparison_text(c, label)))
        place = first + max(1, len(result.findings)) + 0.1
        _draw_verdict(axes, result, first, place - 1.1)
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(place, -0.3)
    axes.set_xlim(-REACH_OF_CLAIMS, REACH_OF_CLAIMS)
    axes.set_xlabel("effect in units of half its interval;\nright: in the direction of the claim; bar: published size")
    legend(figure, (handles(VERDICTS.values(), markersize=4.5), list(VERDICTS)))
    return figure


def _draw_comparison(axes: Axes, y: float, c: Comparison, finding: Finding) -> None:
    interval, size = claimed_effect(c, finding)
    if np.isfinite(interval).all():
        interval_row(axes, y, interval, VERDICTS[finding.verdict], (-REACH_OF_CLAIMS, REACH_OF_CLAIMS))
    if size is not None and size < REACH_OF_CLAIMS:
        axes.plot([size], [y], "|", color=GREY, markersize=6)


def _draw_verdict(axes: Axes, result: ClaimResult, first: float, last: float) -> None:
    """Write the verdict beside the rows of a claim, and the reason into the empty row of a claim without findings."""
    if not result.findings:
        why = "no records" if result.verdict is None else "curves still rise"
        axes.text(0, last, why, ha="center", va="center", fontsize=6.5, color=GREY, style="italic")
    axes.text(
        1.025, (first + last) / 2, textwrap.fill(result.outcome, BESIDE), transform=axes.get_yaxis_transform(),
        color=VERDICTS[result.verdict or "inconclusive"]["color"], ha="left", va="center", fontsize=7,
        fontweight="bold",
    )  # fmt: skip


def claimed_effect(c: Comparison, finding: Finding) -> tuple[Interval, float | None]:
    """Effect with interval, and published size, in units of half the interval; positive in the claimed direction.

    The claimed direction of `apart` is that of the effect. NaN and None if the interval is infinite.
    """
    d = finding.difference
    sign = -1 if c.claimed == "below" or (c.claimed == "apart" and d.mean < 0) else 1
    half = (d.high - d.low) / 2 or 1.0
    if not np.isfinite(half):
        return Interval(np.nan, np.nan, np.nan), None
    effect, *ends = (sign * value / half for value in (d.mean, d.low, d.high))
    return Interval(effect, min(ends), max(ends)), c.size and c.size / half


def _comparison_text(c: Comparison, label: Callable[[str], str]) -> str:
    """Text of a claim: `entropy: TEPO > DAPO`, `steps needed: TEPO < GRPO`; settings of both are named once."""
    what = STATISTICS.get(c.metric or c.statistic, (c.metric or c.statistic).replace("_", " "))
    what += f" after {updates_text(c.updates)}" if c.updates else ""
    first, settings = c.of.partition("+")[::2]
    one = first if settings and settings == c.than.partition("+")[2] else c.of
    return f"{what}: {label(one)} {RELATIONS[c.claimed]} {label(c.than)}"
