"""Whole methods by updates per batch; ratios alone in one round, and the clip range beside them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import UserError
from ..results.reader import StudyResults
from ..study.runs import arms_of
from .alike import GRAINS, band, band_text, resolved, same_but
from .forest import apart, line, powers_of_two, row, shade
from .measured import MARGIN_OF_CURVES, MARGIN_OF_ROUNDS, area, paired, round_difference, round_reference, round_updates
from .style import NARROW, labels, legend, looks, ratio_look

BASE = "dapo"  # the method with a token ratio that whole runs are compared with
IN_A_ROUND = ("block", "prefix", "sequence", "reinforce", "product")


def draw(results: StudyResults) -> Figure:
    """Three panels of paired differences in points, with 95% intervals over training seeds or start models."""
    figure = Figure(figsize=(NARROW, 6.0))
    runs, rounds, bands = figure.subplots(3, 1, height_ratios=(1, 1.1, 1))
    _runs(runs, results)
    _rounds(rounds, results)
    _bands(bands, results)
    legend(figure)
    return figure


def _runs(axes: Axes, results: StudyResults) -> None:
    """Area under the learning curve by updates per batch, minus that of DAPO."""
    arms: dict[str, dict[int, str]] = {}
    for arm in arms_of(results.study.experiments["headline"], results.study):
        arms.setdefault(arm.method_name, {})[arm.training(results.study).updates_per_batch] = arm.name
    ticks = sorted(arms[BASE])
    others = [name for name in arms if name != BASE]
    ratios = {name: found.ratio.name for name, found in resolved(results.study, others).items()}
    label, found_looks = labels(results.study), looks(results.study)
    shade(axes, MARGIN_OF_CURVES)
    for i, name in enumerate(others):
        values = [paired(area(results, arms[name][u]), area(results, arms[BASE][u])).to_numpy() for u in ticks]
        style = {**found_looks[name], "label": f"{label(name)} ({ratios[name]})"}
        line(axes, apart(ticks, i, len(others), 0.14), values, style)
    powers_of_two(axes, ticks)
    axes.set_xlim(ticks[0] / 1.5, ticks[-1] * 1.5)
    axes.set_xlabel("updates per batch\n(more: more optimizer steps)")
    axes.set_ylabel(f"points, minus {label(BASE)}")
    axes.set_title("Whole methods, not ratios alone:\nmean accuracy during training", loc="left")


def _rounds(axes: Axes, results: StudyResults) -> None:
    """Reward after some updates from the same rollouts, minus that of the reference."""
    reference, ticks = round_reference(results), round_updates(results)
    methods = resolved(results.study, [m for m in IN_A_ROUND if (results.rounds["method"] == m).any()])
    shade(axes, MARGIN_OF_ROUNDS)
    for i, (name, found) in enumerate(methods.items()):
        values = [round_difference(results, name, reference, u).to_numpy() for u in ticks]
        ratio = found.ratio.name
        style = {**ratio_look(ratio), "label": "no ratio" if ratio == "none" else f"{ratio} alone"}
        line(axes, apart(ticks, i, len(methods), 0.09), values, style)
    powers_of_two(axes, ticks)
    axes.set_xlabel("updates since the rollouts")
    axes.set_ylabel(f"points, minus\n{reference} ratio")
    axes.set_title("One round from the same rollouts", loc="left")


def _bands(axes: Axes, results: StudyResults) -> None:
    """After the last update: each ratio at its chosen band, and one ratio at other bands."""
    reference, last = round_reference(results), round_updates(results)[-1]
    measured = list(dict.fromkeys(results.rounds["method"]))
    methods = resolved(results.study, measured)
    rows = [name for name in GRAINS if name in methods and name != reference]
    groups = [g for g in same_but("clip", methods) if set(g) & set(GRAINS)]
    others = [name for group in groups for name in group if name not in GRAINS]
    if not rows:
        raise UserError(f"grain: `rounds.methods` has none of {', '.join(GRAINS)} but {reference!r}.")
    shade(axes, MARGIN_OF_ROUNDS, vertical=True)
    ticks: list[tuple[float, str]] = []
    place = 0.0
    for heading, names in (("chosen bands", rows), ("other bands", others)):
        if not names:
            continue
        axes.text(
            -0.02, place, heading, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=7.5,
            fontweight="bold",
        )  # fmt: skip
        for name in names:
            place += 1
            ratio = methods[name].ratio.name
            values = round_difference(results, name, reference, last).to_numpy()
            row(axes, place, values, ratio_look(ratio))
            ticks.append((place, f"{ratio} {band_text(band(methods[name]))}"))
        place += 1.3
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(place - 0.6, -0.6)
    axes.set_xlabel(f"points, minus {reference} {band_text(band(methods[reference]))}")
    axes.set_title(f"Ratio or clip band? After {last} updates", loc="left")
