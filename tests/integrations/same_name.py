"""What trainers compute under a method's name with their defaults, beside the method as published.

`python -m tests.integrations.same_name` writes same_name.json, which `test_same_name.py` holds and docs/conformance.md
shows in short. It needs the trainers (`make test-peers` makes such an environment). ROLL has no package:
POLICYGRAIN_ROLL names a clone, and without it its rows stay as they are in the record. The comparison is that of the
conformance kit, `policygrain.testing.compare`, on one batch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from policygrain import Method, method
from policygrain.files import atomic_json
from policygrain.testing import compare
from policygrain.testing.generated import random_fields

from ..support.trainer_losses import (
    areal_objective,
    roll_objective,
    roll_version,
    skyrl_objective,
    trinity_objective,
    trl_objective,
    verl_config,
    verl_objective,
)

RECORD = Path(__file__).with_suffix(".json")
LENGTHS = [12, 5, 9, 1, 7, 3, 12, 8, 2, 11, 4, 6, 10, 1, 9, 5]
DRIFT = 0.3
MICRO = (1, 2, 4)
BAND = {"low": 0.2, "high": 0.2}
PACKAGES = {"TRL": "trl", "verl": "verl", "AReaL": "areal", "Trinity-RFT": "trinity-rft", "SkyRL": "skyrl"}
Loss = Callable[[dict[str, Any], int], Tensor]  # fields, micro-batches → loss of one optimizer step


class Name(NamedTuple):
    """A name in a trainer: what a user writes, and the preset that has the paper's objective."""

    trainer: str
    setting: str
    preset: str
    loss: Loss
    divided: bool = True  # whether ``loss`` can divide a step into micro-batches as the trainer does


def _verl(mode: str) -> Loss:
    return lambda fields, micro: verl_objective(mode, verl_config(mode), fields, micro)


# Trainer → (the setting that chooses a loss, the loss of such a setting, whether it can be divided as there).
LOSSES: dict[str, tuple[str, Callable[..., Loss], bool]] = {
    "TRL": ("", lambda _, **how: lambda fields, micro: trl_objective(fields, micro=micro, **how)[0], True),
    "verl": ("loss_mode=", _verl, True),
    "AReaL": ("", lambda _, **how: lambda fields, _: areal_objective(fields, **how), False),
    "Trinity-RFT": ("policy_loss_fn=", lambda name: lambda fields, _: trinity_objective(name, fields), False),
    "SkyRL": ("policy_loss_type=", lambda name: lambda fields, micro: skyrl_objective(name, fields, micro), True),
    "ROLL": ("", lambda setting: lambda fields, _: roll_objective(setting, fields), False),
}


def name(trainer: str, setting: str, preset: str, **how: Any) -> Name:
    """A name in a trainer; ``how``: the options of its loss that the setting stands for."""
    prefix, loss, divided = LOSSES[trainer]
    return Name(trainer, prefix + setting, preset, loss(setting, **how), divided)


NAMES = [
    name("TRL", "loss_type=grpo", "grpo", loss_type="grpo"),
    name("TRL", "loss_type=dapo (the default)", "dapo"),
    name("TRL", "loss_type=dr_grpo", "dr_grpo", loss_type="dr_grpo"),
    name("TRL", "importance_sampling_level=sequence", "gspo", level="sequence"),
    *(name("TRL", f"loss_type={x}", x, loss_type=x) for x in ("cispo", "luspo", "sapo", "vespo")),
    name("verl", "vanilla", "grpo"),
    *(name("verl", x, x) for x in ("gspo", "cispo")),
    name("verl", "geo_mean", "gmpo"),
    *(name("verl", x, x) for x in ("sapo", "dppo_tv", "dppo_kl", "kl_cov")),
    name("AReaL", "importance_sampling_level=token", "grpo"),
    name("AReaL", "importance_sampling_level=sequence", "gspo", level="sequence"),
    name("AReaL", "use_sapo_loss=true", "sapo", sapo=True),
    name("Trinity-RFT", "ppo", "grpo"),
    *(name("Trinity-RFT", x, x) for x in ("gspo", "cispo", "sapo", "topr")),
    name("SkyRL", "regular", "grpo"),
    *(name("SkyRL", x, x) for x in ("gspo", "cispo", "sapo")),
    name("SkyRL", "dppo", "dppo_tv"),
    name("SkyRL", "kl_cov", "kl_cov"),
    name("ROLL", "importance_sampling=token", "grpo"),
    name("ROLL", "importance_sampling=seq", "gspo"),
    name("ROLL", "pg_variant=cispo", "cispo"),
    name("ROLL", "pg_variant=topr", "topr"),
    name("ROLL", "pg_variant=kimi15", "dro"),
    name("ROLL", "ratio_type=segment", "turn_ratio"),
]

# What a name may be, in words, besides what the kit tries for every preset.
OTHERS: dict[str, dict[str, Method]] = {
    "cispo": {
        "`cispo` with every weight at most 0.2": method("cispo", clip={"cap": 0.2}),
        "`cispo` with weights from 0.8 to 1.2": method("cispo", clip={"low": 0.8, "cap": 1.2}),
        "`cispo` with every weight at most 1.28": method("cispo", clip={"cap": 1.28}),
        "`cispo` with weights from 1 to 6": method("cispo", clip={"low": 1.0, "cap": 6.0}),
        "`cispo` with `seq_mean_token_mean` and weights from 0.9 to 1.1": method(
            "cispo", clip={"low": 0.9, "cap": 1.1}, aggregation="seq_mean_token_mean"
        ),
    },
    "gmpo": {"`gmpo` with ε = 0.2": method("gmpo", clip=BAND)},
    "dppo_tv": {"`dppo_tv` with δ = 0.2": method("dppo_tv", clip=BAND)},
    "dppo_kl": {"`dppo_kl` with δ = 0.2": method("dppo_kl", clip=BAND)},
    "kl_cov": {
        "`kl_cov` with λ = 0.1 on a share of 0.0002": method(
            "kl_cov", penalties=[{"name": "kl_cov", "coefficient": 0.1, "fraction": 2e-4}]
        ),
        "`kl_cov` with λ = the number of tokens, on a share of 0.2": method(
            "kl_cov", penalties=[{"name": "kl_cov", "coefficient": float(sum(LENGTHS)), "fraction": 0.2}]
        ),
    },
    "dro": {
        "`dro` with `seq_mean_token_mean` and β = 0.1": method(
            "dro",
            aggregation="seq_mean_token_mean",
            penalties=[{"name": "squared_log_ratio", "coefficient": 0.1}],
        )
    },
}


def batch() -> dict[str, Any]:
    """16 responses of 1 to 12 tokens in float64, whose log-ratios have a standard deviation of 0.3."""
    fields = random_fields(LENGTHS, 3, DRIFT)
    # Log-probabilities below 0: DPPO reads probabilities.
    return fields | {key: fields[key].clamp(max=-0.01) for key in ("log_probs", "old_log_probs")}


def measure() -> dict[str, Any]:
    """Every name: what it equals, how its gradient differs from the paper's, its loss by number of micro-batches.

    Without the rows of ROLL where there is no clone of it.
    """
    fields = batch()
    versions = {trainer: version(package) for trainer, package in PACKAGES.items()}
    if commit := roll_version():
        versions["ROLL"] = commit
    rows = []
    for one in (one for one in NAMES if one.trainer in versions):
        compared = compare(
            lambda loss=one.loss, **given: loss(given, 1),
            one.preset,
            {"this": fields},
            value=False,
            rtol=1e-6,
            others=OTHERS.get(one.preset, {}),
        )
        losses = [float(one.loss(fields, micro)) for micro in (MICRO if one.divided else MICRO[:1])]
        rows.append(
            {
                "trainer": one.trainer,
                "setting": one.setting,
                "preset": one.preset,
                "equals": compared.equals,
                "cosine": round(compared.cosine, 4),
                "norm": round(compared.norm, 4),
                "losses": [float(f"{loss:.6g}") for loss in losses],
                "depends_on_division": max(losses) - min(losses) > 1e-9 * max(map(abs, losses))
                if one.divided
                else None,
            }
        )
    return {"versions": versions, "responses": len(LENGTHS), "drift": DRIFT, "micro_batches": MICRO, "names": rows}


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record, measured = json.loads(RECORD.read_text()), measure()
    elsewhere = record["versions"].keys() - measured["versions"].keys()
    measured["versions"] |= {trainer: record["versions"][trainer] for trainer in elsewhere}
    measured["names"] += [row for row in record["names"] if row["trainer"] in elsewhere]
    atomic_json(RECORD, measured)
