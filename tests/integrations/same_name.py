"""What trainers compute under a method's name with their defaults, beside the method as published.

`python -m tests.integrations.same_name` writes docs/integrations/same-name.json, which `test_same_name.py` holds and
`docs/generate.py` shows. It needs the trainers (`make test-peers` makes such an environment). ROLL has no package:
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

RECORD = Path(__file__).parents[2] / "docs/integrations/same-name.json"
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


def _trl(setting: str, preset: str, **options: Any) -> Name:
    return Name("TRL", setting, preset, lambda fields, micro: trl_objective(fields, micro=micro, **options)[0])


def _verl(mode: str, preset: str) -> Name:
    return Name(
        "verl",
        f"loss_mode={mode}",
        preset,
        lambda fields, micro: verl_objective(mode, verl_config(mode), fields, micro),
    )


def _areal(setting: str, preset: str, **options: Any) -> Name:
    return Name("AReaL", setting, preset, lambda fields, _: areal_objective(fields, **options), divided=False)


def _trinity(name: str, preset: str) -> Name:
    return Name(
        "Trinity-RFT",
        f"policy_loss_fn={name}",
        preset,
        lambda fields, _: trinity_objective(name, fields),
        divided=False,
    )


def _skyrl(name: str, preset: str) -> Name:
    return Name(
        "SkyRL",
        f"policy_loss_type={name}",
        preset,
        lambda fields, micro: skyrl_objective(name, fields, micro),
    )


def _roll(setting: str, preset: str) -> Name:
    return Name("ROLL", setting, preset, lambda fields, _: roll_objective(setting, fields), divided=False)


NAMES = [
    _trl("loss_type=grpo", "grpo", loss_type="grpo"),
    _trl("loss_type=dapo (the default)", "dapo"),
    _trl("loss_type=dr_grpo", "dr_grpo", loss_type="dr_grpo"),
    _trl("importance_sampling_level=sequence", "gspo", level="sequence"),
    _trl("loss_type=cispo", "cispo", loss_type="cispo"),
    _trl("loss_type=luspo", "luspo", loss_type="luspo"),
    _trl("loss_type=sapo", "sapo", loss_type="sapo"),
    _trl("loss_type=vespo", "vespo", loss_type="vespo"),
    _verl("vanilla", "grpo"),
    _verl("gspo", "gspo"),
    _verl("cispo", "cispo"),
    _verl("geo_mean", "gmpo"),
    _verl("sapo", "sapo"),
    _verl("dppo_tv", "dppo_tv"),
    _verl("dppo_kl", "dppo_kl"),
    _verl("kl_cov", "kl_cov"),
    _areal("importance_sampling_level=token", "grpo"),
    _areal("importance_sampling_level=sequence", "gspo", level="sequence"),
    _areal("use_sapo_loss=true", "sapo", sapo=True),
    _trinity("ppo", "grpo"),
    _trinity("gspo", "gspo"),
    _trinity("cispo", "cispo"),
    _trinity("sapo", "sapo"),
    _trinity("topr", "topr"),
    _skyrl("regular", "grpo"),
    _skyrl("gspo", "gspo"),
    _skyrl("cispo", "cispo"),
    _skyrl("sapo", "sapo"),
    _skyrl("dppo", "dppo_tv"),
    _skyrl("kl_cov", "kl_cov"),
    _roll("importance_sampling=token", "grpo"),
    _roll("importance_sampling=seq", "gspo"),
    _roll("pg_variant=cispo", "cispo"),
    _roll("pg_variant=topr", "topr"),
    _roll("pg_variant=kimi15", "dro"),
    _roll("ratio_type=segment", "turn_ratio"),
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
    for name in (name for name in NAMES if name.trainer in versions):
        compared = compare(
            lambda loss=name.loss, **given: loss(given, 1),
            name.preset,
            {"this": fields},
            value=False,
            rtol=1e-6,
            others=OTHERS.get(name.preset, {}),
        )
        losses = [float(name.loss(fields, micro)) for micro in (MICRO if name.divided else MICRO[:1])]
        rows.append(
            {
                "trainer": name.trainer,
                "setting": name.setting,
                "preset": name.preset,
                "equals": compared.equals,
                "cosine": round(compared.cosine, 4),
                "norm": round(compared.norm, 4),
                "losses": [float(f"{loss:.6g}") for loss in losses],
                "depends_on_division": max(losses) - min(losses) > 1e-9 * max(map(abs, losses))
                if name.divided
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
