"""The loss for prime-rl on objects of its form: loss and gradient are those of a step; what cannot be is refused."""

from types import SimpleNamespace

import pytest
import torch

from policygrain import method
from policygrain.integrations.options import UnsupportedOption
from policygrain_lab.prime_rl import loss
from tests.support.batches import FOUR, loss_and_gradient, random_fields

TURNS = method("dapo", ratio={"name": "block", "layout": "turns", "weights": "uniform"})
OBJECTIVES = ["bypass", "dapo", "tepo_v1", "mpo", "prefix_is", "reinforce", TURNS, method("dapo", penalties=["kl"])]


def step(objective, made):
    """Loss and gradient of a step: responses without padding, one by one, over the number of tokens."""
    log_probs, total = made["log_probs"].clone().requires_grad_(), torch.zeros(())
    theirs = {"inference_logprobs": "old_log_probs", "ref_logprobs": "ref_log_probs", "loss_mask": "mask"}
    for i, n in enumerate(FOUR):
        given = {name: made[ours][i, :n] for name, ours in theirs.items()}
        given |= {"trainer_logprobs": log_probs[i, :n], "advantages": made["advantages"][i].expand(n)}
        total = total + loss(SimpleNamespace(**given), objective=objective).loss / int(made["mask"].sum())
    return total.detach(), torch.autograd.grad(total, log_probs)[0]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_methods_with_a_mean_over_tokens_are_exact(objective):
    made = random_fields(FOUR, 3, 0.4)
    given = {name: made[name] for name in ("log_probs", "old_log_probs", "advantages", "ref_log_probs")}
    given |= {"mask": made["mask"] & (torch.arange(9) % 4 != 2), "rollout_log_probs": given["old_log_probs"]}
    torch.testing.assert_close(step(objective, given), loss_and_gradient(objective, given), check_dtype=False)


@pytest.mark.parametrize("name", ["grpo", "tepo", "clip_cov", "mpo_heads", "a3po"])
def test_what_cannot_be_expressed_is_refused(name):
    with pytest.raises(UnsupportedOption, match="prime-rl"):
        step(name, random_fields(FOUR, 3, 0.4))
