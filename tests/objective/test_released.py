"""Released code of AReaL, Trinity-RFT and SkyRL beside the same parts here (`make test-peers`)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from policygrain import TokenBatch, method
from policygrain.objective.advantage import Gigpo, TurnRewards
from policygrain.objective.correction import rollout_weights
from policygrain.testing import assert_objective
from policygrain.testing.generated import random_fields

from ..support.trainer_losses import areal_actor, skyrl_module, trinity_objective

for trainer in ("areal", "trinity", "skyrl"):
    pytest.importorskip(trainer, reason=f"{trainer} is not installed here; `make test-peers` has it")

LENGTHS = (12, 5, 9, 1, 7, 3, 8, 2)


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
def test_decoupled_is_areals(seed: int) -> None:
    fields, chosen = fields_of(seed), method("decoupled")
    weights = rollout_weights(fields["old_log_probs"], fields["rollout_log_probs"], fields["mask"], chosen.sampler)
    ours = chosen.loss(TokenBatch(**fields, rollout_weights=weights)).loss
    assert_same_loss(areal_decoupled(fields, fields["old_log_probs"]), ours, fields["log_probs"])


@pytest.mark.parametrize("seed", range(4))
def test_a3po_is_areals(seed: int) -> None:
    fields = fields_of(seed)
    versions = torch.arange(fields["mask"].numel()).view(fields["mask"].shape) % 6
    given = (fields["rollout_log_probs"], fields["log_probs"].detach(), versions, 5, "loglinear")
    theirs = areal_decoupled(fields, areal_actor().compute_prox_logp_approximations(*given)["loglinear"])
    ours = method("a3po").loss(TokenBatch(**fields | {"staleness": 5 - versions})).loss
    assert_same_loss(theirs, ours, fields["log_probs"])


def test_topr_with_token_ratios_is_trinitys() -> None:
    def theirs(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        fields = {"log_probs": log_probs, "old_log_probs": old_log_probs, "advantages": advantages, "mask": mask}
        return trinity_objective("topr", fields)

    assert_objective(theirs, method("topr", ratio="token", aggregation="token_mean"))


def test_prompt_mean_is_skyrls() -> None:
    ppo_utils, config = skyrl_module()

    def theirs(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
        edges = [0, *(groups.diff().nonzero().squeeze(1) + 1).tolist(), len(groups)]
        floats = mask.to(log_probs.dtype)
        scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            advantages.unsqueeze(1).expand_as(floats),
            floats,
            "prompt_mean",
            len(floats),
            floats.shape[1],
            list(itertools.pairwise(edges)),
        )
        loss_of = ppo_utils.PolicyLossRegistry.get("regular")
        return loss_of(log_probs, old_log_probs, scaled, config(policy_loss_type="regular"), floats)[0]

    assert_objective(theirs, method("grpo", aggregation="prompt_mean"))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("std", "fnorm"), [(False, "none"), (True, "std")])
def test_gigpo_is_trinitys(seed: int, std: bool, fnorm: str) -> None:
    """Rewards at each turn, and equal states in several turns and responses."""
    from trinity.algorithm.advantage_fn.gigpo_advantage import GiGPOAdvantageFn
    from trinity.common.experience import EID, Experience

    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 3, (4, 3), generator=generator).double()
    states = torch.randint(0, 4, (4, 3), generator=generator)
    mask = torch.arange(3) < torch.randint(1, 4, (4, 1), generator=generator)
    places = mask.nonzero().tolist()
    experiences = [
        Experience(
            eid=EID(batch=0, task=0, run=i, step=k),
            tokens=torch.tensor([1, 2]),
            prompt_length=1,
            action_mask=torch.ones(1),
            info={"step_reward": float(rewards[i, k]), "env_state_hash": str(int(states[i, k]))},
        )
        for i, k in places
    ]
    processed, _ = GiGPOAdvantageFn(omega=0.7, gamma=0.9, fnorm=fnorm).process(experiences)
    turns = TurnRewards(rewards.unsqueeze(0), mask.long().unsqueeze(0), states.unsqueeze(0))
    ours = Gigpo(weight=0.7, discount=0.9, std=std).of_turns(turns)[0]
    for (i, k), experience in zip(places, processed, strict=True):
        assert float(experience.advantages) == pytest.approx(float(ours[i, k]), abs=1e-5), (i, k)
