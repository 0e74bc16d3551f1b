"""The clip band of each ratio, chosen among the candidates of a study (studies/bands.yaml) on validation problems.

The rule (docs/regime.md): of a ratio's candidates, the one with the largest area under the learning curve on validation
problems, averaged over seeds and over all numbers of updates per batch; of candidates within 0.1 points of it the
narrowest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UserError
from ..results.reader import StudyResults
from ..study.runs import Arm, arms_of
from . import measures

EXPERIMENT = "bands"
TIE = 0.1  # points
Band = tuple[float, float]  # low, high


def candidates(results: StudyResults) -> dict[str, dict[Band, list[Arm]]]:
    """Ratio → band → the arms with both, one per number of updates per batch. UserError without such an experiment."""
    experiment = results.study.experiments.get(EXPERIMENT)
    if experiment is None:
        raise UserError(
            f"{results.folder.path}: the study has no experiment named {EXPERIMENT!r}, see studies/bands.yaml."
        )
    found: dict[str, dict[Band, list[Arm]]] = {}
    for arm in arms_of(experiment, results.study):
        method = arm.method(results.study)
        clip = method.clip.settings
        if "low" in clip and "high" in clip:
            found.setdefault(method.ratio.label, {}).setdefault((clip["low"], clip["high"]), []).append(arm)
    numbers = {ratio: len(bands) for ratio, bands in found.items()}
    if len(set(numbers.values())) != 1:
        said = ", ".join(f"{ratio}: {n}" for ratio, n in numbers.items()) or "none"
        raise UserError(f"experiments.{EXPERIMENT}: every ratio needs the same number of candidate bands ({said}).")
    return found


def choose_bands(results: StudyResults) -> dict[str, Any]:
    """The chosen band of each ratio, and every candidate's area under the curve in points, by updates and seed."""
    chosen, tried = {}, {}
    for ratio, bands in candidates(results).items():
        areas = {band: _areas(results, arms) for band, arms in bands.items()}
        means = {
            band: float(np.mean([v for seeds in by.values() for v in seeds.values()])) for band, by in areas.items()
        }
        best = max(means.values())
        chosen[ratio] = _data(min(band for band, mean in means.items() if mean >= best - TIE))
        tried[ratio] = [_data(band) | {"mean": round(means[band], 3), "areas": areas[band]} for band in bands]
    return {"study": results.study.name, "seeds": list(results.study.seeds), "chosen": chosen, "candidates": tried}


def _areas(results: StudyResults, arms: list[Arm]) -> dict[str, dict[str, float]]:
    """Updates per batch → seed → area under the learning curve, in points."""
    found = {}
    for arm in arms:
        updates = arm.training(results.study).updates_per_batch
        found[str(updates)] = {str(seed): round(float(v), 3) for seed, v in measures.area(results, arm.name).items()}
    return found


def _data(band: Band) -> dict[str, float]:
    return {"low": band[0], "high": band[1]}
