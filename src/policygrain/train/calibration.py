"""How the laptop study's regime was chosen, as a command: a learning rate, and clip bands matched by clip fraction.

Only training and validation problems are read. The learning rate is the largest with which the reference method (token
ratio, its published band) does as well on validation as with the best one, within its standard error over seeds: a
regime is wanted in which ratios leave 1. The bands of the other ratios are those that would have clipped as
many tokens as the token ratio's band did, on the very batches of those reference runs: a band of 0.2 is narrow for a
product of ratios and boundless for a mean of them, so equal numbers would compare bands and not ratios.
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
from ..methods import MethodChanges
from ..methods.compute import function
from ..methods.parts import Block, Part, PrefixRatio, SequenceRatio, TokenRatio
from ..objective import clip
from ..objective.batch import TokenBatch
from ..results.layout import StudyFolder
from ..results.reader import run_summary
from ..study.runs import run_matrix
from ..study.schema import Experiment
from ..tasks.sources import prepare
from .run import train_run
from .start_model import ensure_start_model

if TYPE_CHECKING:
    from ..study import Study

BAND = {"low": 0.2, "high": 0.28}  # DAPO's, for the token ratio
LEARNING_RATES = (1e-4, 2e-4, 4e-4)
# Every ratio of the study's methods that clips, by the name that its band is known under.
RATIOS: dict[str, Part] = {
    "sequence": SequenceRatio(),
    "prefix": PrefixRatio(),
    "block": Block(),
    "block_joint": Block(weights="joint"),
}
_observed: dict[str, list[Tensor]] = {}


def observe(batch_ratio: Tensor, batch: TokenBatch, *, low: float = 0.2, high: float = 0.28) -> clip.Surrogate:
    """PPO's clip, which also notes what every other ratio would have been on the same tokens."""
    with torch.no_grad():
        keep = batch.mask & (batch.advantages != 0)
        for name, part in {"token": TokenRatio(), **RATIOS}.items():
            values = function(part)(batch)[keep]
            # The sign of the advantage decides which side of the band can bite.
            _observed.setdefault(name, []).append(torch.stack([values, batch.advantages[keep].sign()]))
    return clip.ppo(batch_ratio, batch, low=low, high=high)


def calibrate(study: Study, work: Path, out: Path) -> None:
    """Run the pilots, a learning rate and seed after the other, in ``work``; write what was measured and chosen."""
    if study.model.start != "tiny":
        raise UserError("calibrate: only studies of a tiny start model are calibrated; others follow their papers.")
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
    """The largest rate whose mean is within one standard error of the best one's (Breiman's rule)."""
    best = max(accuracy.values(), key=statistics.mean)
    error = statistics.stdev(best) / len(best) ** 0.5 if len(best) > 1 else 0.0
    return max(rate for rate, values in accuracy.items() if statistics.mean(values) >= statistics.mean(best) - error)


def _pilots(study: Study) -> Study:
    """The study with the reference method alone, once per learning rate: DAPO without dynamic sampling, watched."""
    watched = {"name": f"{__name__}:{observe.__name__}", **BAND}
    sampler = {"dynamic": False, "overlong_buffer": 0.0}
    reference = MethodChanges.model_validate({"base": "dapo", "clip": watched, "sampler": sampler})
    experiment = Experiment(methods=["reference"], vary={"learning_rate": list(LEARNING_RATES)}, evaluate=False)
    return study.model_copy(update={"methods": {"reference": reference}, "experiments": {"pilots": experiment}})


def matched_bands(observed: dict[str, Tensor], low: float, high: float) -> dict[str, Any]:
    """Bands that clip the same share of tokens below and above as (low, high) does for the token ratio.

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
    """torch.quantile takes at most 16 million values."""
    return values[:: max(1, len(values) // most)].float()
