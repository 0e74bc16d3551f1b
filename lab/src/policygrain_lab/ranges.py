"""The clip range of each ratio, chosen among a study's candidates on validation problems.

The rule: of a ratio's candidates, the one with the largest area under the learning curve, mean over
regimes and seeds. If it is at an end of the list, the study needs candidates beyond it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policygrain.analysis import measures
from policygrain.errors import UserError
from policygrain.results import StudyResults
from policygrain.study.runs import Arm, arms_of
from policygrain.text import columns

EXPERIMENT = "ranges"
Range = tuple[float, float]  # low, high


def candidates(results: StudyResults) -> dict[str, dict[Range, list[Arm]]]:
    """Ratio → range, narrowest first → its arms, one per regime.

    UserError without such an experiment, or if two methods have the same ratio and range.
    """
    experiment = results.study.experiments.get(EXPERIMENT)
    if experiment is None:
        raise UserError(
            f"{results.folder.path}: the study has no experiment named {EXPERIMENT!r}, "
            "see lab/research/studies/phase-ranges.yaml."
        )
    by_ratio: dict[str, dict[Range, list[Arm]]] = {}
    for arm in arms_of(experiment, results.study):
        method = arm.method
        clip = method.clip.settings
        if "low" in clip and "high" in clip:
            arms = by_ratio.setdefault(method.ratio.label, {}).setdefault((clip["low"], clip["high"]), [])
            arms.append(arm)
            if arms[0].method_name != arm.method_name:
                raise UserError(
                    f"experiments.{EXPERIMENT}: {arms[0].method_name} and {arm.method_name} have the same ratio and "
                    "range; leave one out."
                )
    if not by_ratio:
        raise UserError(f"experiments.{EXPERIMENT}: none of its methods has a clip range.")
    return {ratio: dict(sorted(ranges.items())) for ratio, ranges in by_ratio.items()}


def choose_ranges(results: StudyResults) -> dict[str, Any]:
    """The chosen range of each ratio, and every candidate's area under the curve in points, by regime and seed."""
    chosen, tried, extend = {}, {}, []
    for ratio, ranges in candidates(results).items():
        areas = {ends: _areas(results, arms) for ends, arms in ranges.items()}
        if len({tuple((regime, *seeds) for regime, seeds in by.items()) for by in areas.values()}) > 1:
            raise UserError(
                f"{results.folder.path}: not all ranges of the {ratio} ratio have been trained with the same seeds. "
                "Run `snakemake all`."
            )
        means = {
            ends: float(np.mean([v for seeds in by.values() for v in seeds.values()])) for ends, by in areas.items()
        }
        best = max(means, key=lambda ends: means[ends])
        if best in (min(means), max(means)):
            extend.append(ratio)
        chosen[ratio] = _data(best)
        tried[ratio] = [_data(ends) | {"mean": round(means[ends], 3), "areas": areas[ends]} for ends in ranges]
    record = {"study": results.study.name, "seeds": list(results.study.seeds), "chosen": chosen, "extend": extend}
    return record | {"candidates": tried}


def _areas(results: StudyResults, arms: list[Arm]) -> dict[str, dict[str, float]]:
    """Settings of a regime → seed → area under the learning curve, in points."""
    by_regime = {}
    for arm in arms:
        training, keys = arm.training, results.study.experiments[EXPERIMENT].vary
        regime = ", ".join(f"{key} {getattr(training, key)}" for key in keys)
        by_regime[regime] = {str(seed): round(float(v), 3) for seed, v in measures.auc(results, arm.name).items()}
    return by_regime


def _data(ends: Range) -> dict[str, float]:
    return {"low": ends[0], "high": ends[1]}


def ranges_text(choice: dict[str, Any]) -> str:
    """Result of `choose_ranges` as a table, and the ratios whose best range is at an end of the list."""
    rows = []
    for ratio, ranges in choice["candidates"].items():
        for one in ranges:
            mark = "chosen" if {key: one[key] for key in ("low", "high")} == choice["chosen"][ratio] else ""
            means = [f"{sum(seeds.values()) / len(seeds):.1f}" for seeds in one["areas"].values()]
            rows.append([ratio, f"{one['low']:g} / {one['high']:g}", f"{one['mean']:.1f}", *means, mark])
    regimes = list(next(iter(choice["candidates"].values()))[0]["areas"])
    lines = columns(rows, ["ratio", "range", "mean AUC", *regimes, ""], "llr" + "r" * len(regimes) + "l")
    if choice["extend"]:
        ends = ", ".join(choice["extend"])
        lines += ["", f"The best range is at an end of the list of: {ends}. Add candidates beyond it."]
    return "\n".join(lines)
