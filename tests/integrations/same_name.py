"""What TRL and verl compute under a method's name with their defaults, beside the method as published.

`python -m tests.integrations.same_name` writes docs/integrations/same-name.json, which `test_same_name.py` holds and
`docs/generate.py` shows. It needs both trainers (`make test-peers` makes such an environment).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policygrain import Method, TokenBatch, method
from policygrain.files import atomic_json

from ..support.batches import random_fields
from ..support.trainer_losses import trl_step, verl_config, verl_step

RECORD = Path(__file__).parents[2] / "docs/integrations/same-name.json"
LENGTHS = [12, 5, 9, 1, 7, 3, 12, 8, 2, 11, 4, 6, 10, 1, 9, 5]
DRIFT = 0.3
MICRO = (1, 2, 4)
BAND = {"low": 0.2, "high": 0.2}
Step = Callable[[dict[str, Any], int], tuple[Any, Tensor]]  # fields, micro-batches → loss and gradient


class Name(NamedTuple):
    """A name in a trainer: what a user writes, and the preset that has the paper's objective."""

    trainer: str
    setting: str
    preset: str
    step: Step


def _trl(setting: str, preset: str, **options: Any) -> Name:
    return Name("TRL", setting, preset, lambda fields, micro: trl_step(fields, micro=micro, **options))


def _verl(mode: str, preset: str) -> Name:
    return Name(
        "verl", f"loss_mode={mode}", preset, lambda fields, micro: verl_step(mode, verl_config(mode), fields, micro)
    )


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
]

# What a name may be equal to, in words; the first with the same gradient is said.
CANDIDATES: dict[str, Method] = {
    **{f"`{name}` as published": method(name) for name in sorted({known.preset for known in NAMES})},
    "`tepo_v1` with the band 0.2 / 0.2": method("tepo_v1", clip=BAND),
    "`dapo` with the band 0.2 / 0.2": method("dapo", clip=BAND),
    "`dapo` with the band 0.2 / 0.2 and dual clip 3": method("dapo", clip={**BAND, "dual": 3.0}),
    "the token ratio, band 0.2 / 0.2, summed over each response": method(
        "dapo", clip=BAND, aggregation="seq_mean_token_sum"
    ),
    "`cispo` with every weight at most 0.2": method("cispo", clip={"cap": 0.2}),
    "`cispo` with weights from 0.8 to 1.2": method("cispo", clip={"low": 0.8, "cap": 1.2}),
    "`gmpo` with ε = 0.2": method("gmpo", clip=BAND),
    "`sapo` with a mean over tokens": method("sapo", aggregation="token_mean"),
    "`dppo_tv` with δ = 0.2": method("dppo_tv", clip=BAND),
    "`dppo_kl` with δ = 0.2": method("dppo_kl", clip=BAND),
    "`kl_cov` with λ = 0.1 on a share of 0.0002": method(
        "kl_cov", penalties=[{"name": "kl_cov", "coefficient": 0.1, "fraction": 2e-4}]
    ),
}


def batch() -> dict[str, Any]:
    """16 responses of 1 to 12 tokens in float64, whose log-ratios have a standard deviation of 0.3."""
    fields = random_fields(LENGTHS, 3, DRIFT)
    # Log-probabilities below 0: DPPO reads probabilities.
    return fields | {key: fields[key].clamp(max=-0.01) for key in ("log_probs", "old_log_probs")}


def gradient_of(chosen: Method, fields: dict[str, Any]) -> Tensor:
    log_probs = fields["log_probs"].clone().requires_grad_()
    loss = chosen.loss(TokenBatch(**fields | {"log_probs": log_probs})).loss
    return torch.autograd.grad(loss, log_probs)[0]


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0))


def measure() -> dict[str, Any]:
    """Every name: what it equals, how its gradient differs from the paper's, its loss by number of micro-batches."""
    fields = batch()
    candidates = {words: gradient_of(chosen, fields) for words, chosen in CANDIDATES.items()}
    rows = []
    for name in NAMES:
        steps = {micro: name.step(fields, micro) for micro in MICRO}
        gradient, paper = steps[1][1], candidates[f"`{name.preset}` as published"]
        equal = [w for w, other in candidates.items() if (gradient - other).norm() <= 1e-6 * other.norm()]
        losses = [float(steps[micro][0]) for micro in MICRO]
        rows.append(
            {
                "trainer": name.trainer,
                "setting": name.setting,
                "preset": name.preset,
                "equals": equal[0] if equal else None,
                "cosine": round(cosine(gradient, paper), 4),
                "norm": round(float(gradient.norm() / paper.norm()), 4),
                "losses": [float(f"{loss:.6g}") for loss in losses],
                "depends_on_division": max(losses) - min(losses) > 1e-9 * max(map(abs, losses)),
            }
        )
    versions = {trainer: version(trainer) for trainer in ("trl", "verl")}
    return {"versions": versions, "responses": len(LENGTHS), "drift": DRIFT, "micro_batches": MICRO, "names": rows}


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        atomic_json(RECORD, measure())
