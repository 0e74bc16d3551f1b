"""Calibration of a study of tiny models: its learning rate, and clip bands matched by clip fraction.

Only training and validation problems are read. The learning rate is the largest whose validation accuracy with the
reference method (token ratio with its published band) is within one standard error over seeds of the best one; with a
large learning rate, ratios differ from 1. The band of each other ratio clips as many tokens as the band of the token
ratio, measured on the batches of the reference runs. With equal bands instead, methods would differ in how much they
clip: a band of 0.2 is narrow for a product of ratios and has no effect on their mean.
"""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UserError
from ..files import atomic_json
from ..methods.compute import function
from ..methods.part import Part
from ..methods.parts import Block, PrefixRatio, SequenceRatio, TokenRatio
from ..objective import clip
from ..objective.batch import TokenBatch
from ..results.layout import StudyFolder
from ..results.reader import run_summary
from ..study.methods import MethodChanges
from ..study.runs import run_matrix
from ..study.schema import Experiment
from ..tasks.sources import prepare
from .run import train_run
from .start_model import ensure_start_model

if TYPE_CHECKING:
    from ..study import Study

BAND = {"low": 0.2, "high": 0.28}  # DAPO's, for the token ratio
LEARNING_RATES = (1e-4, 2e-4, 4e-4)
# The other ratios that are clipped, by the names of their bands.
RATIOS: dict[str, Part] = {
    "sequence": SequenceRatio(),
    "prefix": PrefixRatio(),
    "block": Block(),
    "block_joint": Block(weights="joint"),
}
_observed: dict[str, list[Tensor]] = {}


def observe(batch_ratio: Tensor, batch: TokenBatch, *, low: float = 0.2, high: float = 0.28) -> clip.Surrogate:
    """PPO's clip, which also records the values of all other ratios for the same tokens."""
    with torch.no_grad():
        keep = batch.mask & (batch.advantages != 0)
        for name, part in {"token": TokenRatio(), **RATIOS}.items():
            values = function(part)(batch)[keep]
            # The sign of the advantage determines which side of the band can clip.
            _observed.setdefault(name, []).append(torch.stack([values, batch.advantages[keep].sign()]))
    return clip.ppo(batch_ratio, batch, low=low, high=high)


def calibrate(study: Study, work: Path, out: Path) -> None:
    """Train the pilot runs in ``work``, for each learning rate and seed; write measurements and choices to ``out``."""
    if study.model.start != "tiny":
        raise UserError(
            "calibrate: only studies of a tiny start model can be calibrated; others use the published settings."
        )
    results = StudyFolder(work)
    prepare(study, results.data)
    pilots = _pilots(study)
    accuracy: dict[float, list[float]] = {}
    observed: dict[float, dict[str, Tensor]] = {}
    for arm in run_matrix(pilots).arms.values():
        rate = arm.training(pilots).learning_rate
        _observed.clear()
        accuracy[rate] = []
        for seed in study.seeds:
            start = results.start(seed)
            ensure_start_model(study, seed, results.data, start)
            run = results.run(arm.name, seed)
            shutil.rmtree(run.path, ignore_errors=True)
            train_run(pilots, arm, seed, run, str(start.path), results.data)
            accuracy[rate].append(run_summary(run).final.validation_accuracy)
        observed[rate] = {name: torch.cat(values, dim=1) for name, values in _observed.items()}
    chosen = largest_as_good(accuracy)
    result = {
        "validation_accuracy": {f"{rate:g}": values for rate, values in accuracy.items()},
        "learning_rate": chosen,
        "reference_band": BAND,
        **matched_bands(observed[chosen], BAND["low"], BAND["high"]),
    }
    atomic_json(out, result)
    print(json.dumps(result, indent=1))


def largest_as_good(accuracy: dict[float, list[float]]) -> float:
    """The largest rate whose mean accuracy is within one standard error of the best (Breiman's rule)."""
    best = max(accuracy.values(), key=statistics.mean)
    error = statistics.stdev(best) / len(best) ** 0.5 if len(best) > 1 else 0.0
    return max(rate for rate, values in accuracy.items() if statistics.mean(values) >= statistics.mean(best) - error)


def _pilots(study: Study) -> Study:
    """The study with only the reference method, DAPO without dynamic sampling, once per learning rate."""
    recording_clip = {"name": f"{__name__}:{observe.__name__}", **BAND}
    sampler = {"dynamic": False, "overlong_buffer": 0.0}
    reference = MethodChanges.model_validate({"base": "dapo", "clip": recording_clip, "sampler": sampler})
    experiment = Experiment(methods=["reference"], vary={"learning_rate": list(LEARNING_RATES)}, evaluate=False)
    return study.model_copy(update={"methods": {"reference": reference}, "experiments": {"pilots": experiment}})


def matched_bands(observed: dict[str, Tensor], low: float, high: float) -> dict[str, Any]:
    """Bands that clip the same share of tokens below and above as the band (low, high) of the token ratio.

    ``observed`` maps a ratio to [2, tokens]: log r and the sign of the advantage.
    """
    token, sign = observed["token"]
    share_low = ((token < torch.log(torch.tensor(1 - low))) & (sign < 0)).float().sum() / (sign < 0).sum()
    share_high = ((token > torch.log(torch.tensor(1 + high))) & (sign > 0)).float().sum() / (sign > 0).sum()
    bands = {}
    for name, (values, signs) in observed.items():
        below = torch.quantile(_thinned(values[signs < 0]), share_low)
        above = torch.quantile(_thinned(values[signs > 0]), 1 - share_high)
        bands[name] = {"low": round(float(-torch.expm1(below)), 4), "high": round(float(torch.expm1(above)), 4)}
    return {"clip_fraction": {"low": float(share_low), "high": float(share_high)}, "bands": bands}


def _thinned(values: Tensor, most: int = 10_000_000) -> Tensor:
    """Every n-th value, at most about ``most``: torch.quantile takes at most 16 million."""
    return values[:: max(1, len(values) // most)].float()
