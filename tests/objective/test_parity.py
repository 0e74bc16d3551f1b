"""Losses of trainers on the same tensors: TRL; released code of AReaL, Trinity-RFT and SkyRL (`make test-peers`).

What no package of theirs has yet is written here again from their sources, and runs everywhere.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from policygrain import TokenBatch, method
from policygrain.integrations.conformance import LENGTHS, assert_objective
from policygrain.objective.loss import rollout_weights

from ..support.batches import evaluate, random_fields
from ..support.trainer_losses import areal_actor, trinity_objective, trl_loss
from . import BY_HAND

L_MAX = 12


def package(name: str) -> Any:
    """A fixture that skips a test where the package is not installed."""

    @pytest.fixture(scope="module", name=name)
    def fixture() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TRL about versions of vLLM, which plays no part in the loss
            pytest.importorskip(name, reason=f"{name} is not installed here; `make test-peers` has it")

    return fixture


trl, areal, trinity, skyrl = map(package, ("trl", "areal", "trinity", "skyrl"))

# ---- TRL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "changes", "theirs"), BY_HAND["trl"])
def test_trl_has_the_same_loss_and_gradient(trl, name, changes, theirs, seed):
    ours = method(name, **changes)
    drift = {"gspo": 3e-3, "luspo": 1e-2}.get(ours.name, 0.6)
    fields = random_fields([9, 4, 1, 7, 6, 2], seed, drift) | {"max_length": L_MAX}
    out = evaluate(ours, fields)
    loss, gradient, metrics = trl_loss(fields, max_length=L_MAX, **theirs)
    assert ours.name in ("sapo", "vespo") or out.metrics["clip_fraction_low"] + out.metrics["clip_fraction_high"] > 0
    torch.testing.assert_close(out.loss, loss, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(out.gradient, gradient, rtol=1e-6, atol=1e-9)
    # With sequence ratios TRL counts responses, and it counts no dual clip.
    if "clip_ratio/low_mean" in metrics and theirs.get("level") != "sequence" and "delta" not in theirs:
        assert out.metrics["clip_fraction_low"] == pytest.approx(metrics["clip_ratio/low_mean"][0])
        assert out.metrics["clip_fraction_high"] == pytest.approx(metrics["clip_ratio/high_mean"][0])


# ---- AReaL, Trinity-RFT, SkyRL --------------------------------------------------------------------------------------


def areal_decoupled(fields: dict[str, Any], proximal: Tensor) -> Tensor:
    """AReaL's loss with its decoupled objective; tokens whose weight is above 5 are rejected."""
    from areal.api.cli_args import RejectionSamplingConfig
    from areal.utils.functional import ppo_actor_loss_fn

    return ppo_actor_loss_fn(
        logprobs=fields["log_probs"],
        proximal_logprobs=proximal,
        old_logprobs=fields["rollout_log_probs"],
        advantages=fields["advantages"].unsqueeze(1).expand_as(proximal),
        eps_clip=0.2,
        loss_mask=fields["mask"],
        rejection_sampling=RejectionSamplingConfig(level="token", action="mask", metric="ratio", upper=5.0),
    )[0]


def assert_same_loss(theirs: Tensor, ours: Tensor, log_probs: Tensor) -> None:
    torch.testing.assert_close(theirs, ours)
    gradients = [torch.autograd.grad(loss, log_probs, retain_graph=True)[0] for loss in (theirs, ours)]
    torch.testing.assert_close(*gradients)


def fields_of(seed: int) -> dict[str, Any]:
    """Weights π_old/μ on both sides of 5, and ratios on both sides of the clip."""
    fields = random_fields(LENGTHS, seed, 0.3)
    noise = torch.randn(fields["mask"].shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fields["rollout_log_probs"] = fields["old_log_probs"] - 1.2 * noise
    weights = (fields["old_log_probs"] - fields["rollout_log_probs"]).exp()[fields["mask"]]
    assert weights.max() > 5 > weights.median()
    return fields | {"log_probs": fields["log_probs"].requires_grad_()}


@pytest.mark.parametrize("seed", range(4))
def test_decoupled_is_areals(areal, seed):
    fields, chosen = fields_of(seed), method("decoupled")
    weights = rollout_weights(fields["old_log_probs"], fields["rollout_log_probs"], fields["mask"], chosen.sampler)
    ours = chosen.loss(TokenBatch(**fields, rollout_weights=weights)).loss
    assert_same_loss(areal_decoupled(fields, fields["old_log_probs"]), ours, fields["log_probs"])


@pytest.mark.parametrize("seed", range(4))
def test_a3po_is_areals(areal, seed):
    fields = fields_of(seed)
    versions = torch.arange(fields["mask"].numel()).view(fields["mask"].shape) % 6
    given = (fields["rollout_log_probs"], fields["log_probs"].detach(), versions, 5, "loglinear")
    theirs = areal_decoupled(fields, areal_actor().compute_prox_logp_approximations(*given)["loglinear"])
    ours = method("a3po").loss(TokenBatch(**fields | {"staleness": 5 - versions})).loss
    assert_same_loss(theirs, ours, fields["log_probs"])


def test_topr_with_token_ratios_is_trinitys(trinity):
    def theirs(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        fields = {"log_probs": log_probs, "old_log_probs": old_log_probs, "advantages": advantages, "mask": mask}
        return trinity_objective("topr", fields)

    assert_objective(theirs, method("topr", ratio="token", aggregation="token_mean"))


# ---- written again from sources whose code no package has -----------------------------------------------------------


EMPTY = "a response without tokens"  # the authors of GEPO count it as a response, this package does not


def authors_gepo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """GEPO's authors' loss (HanlardResearch/Hetero-RL ebda3d6, src/hetero_rl/online_rl.py `_compute_loss`), by group.

    There the responses of a micro-batch are the group. Their function itself and `gepo`, on 900 random micro-batches of
    one group: at most 9e-16 apart in the loss, 1.4e-15 in the gradient; that of learner_script_checkpoint.py, with
    `cppo_beta` 0, too.
    """
    p, q = ((x.where(mask, 0.0).sum(1) / mask.sum(1)).exp() for x in (log_probs, old_log_probs))
    losses = []
    for rows in [groups == group for group in groups.unique()]:
        ratio, advantage = p[rows] / (q[rows] / q[rows].sum() * q[rows]).sum(), advantages[rows]
        losses.append(torch.maximum(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage))
    return torch.cat(losses).mean()


def test_gepo_is_its_authors():
    assert_objective(authors_gepo, "gepo", without=[EMPTY], rtol=1e-10)
