"""The loss for prime-rl, one response at a time, divided by the step's tokens as prime-rl does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policygrain import method
from policygrain.integrations.options import UnsupportedOption
from policygrain.integrations.prime_rl import loss

from ..support.batches import FOUR, loss_and_gradient, random_fields
from . import REFUSED, objective_of


def step(objective: Any, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of the step: responses without padding, one by one, over the number of tokens."""
    log_probs = fields["log_probs"].clone().requires_grad_()
    total = torch.zeros((), dtype=log_probs.dtype)
    for i, length in enumerate(FOUR):
        own = slice(0, length)
        inputs = SimpleNamespace(
            trainer_logprobs=log_probs[i, own],
            inference_logprobs=fields["old_log_probs"][i, own],
            ref_logprobs=fields["ref_log_probs"][i, own],
            advantages=fields["advantages"][i].expand(length),
            loss_mask=fields["mask"][i, own].bool(),
            loss_weights=None,
        )
        total = total + loss(inputs, objective=objective).loss
    total = total / int(fields["mask"].sum())
    return total.detach(), torch.autograd.grad(total, log_probs)[0]


@pytest.fixture
def fields():
    return random_fields(FOUR, 3, 0.4)


BY_TURN = method("dapo", ratio={"name": "block", "layout": "turns", "weights": "uniform"})
OBJECTIVES: list[Any] = ["bypass", "dapo", "tepo_v1", "mpo", "mpo_joint", "prefix_is", "reinforce"]
OBJECTIVES += [BY_TURN, method("dapo", penalties=["kl"])]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_methods_with_a_mean_over_tokens_are_exact(objective, fields):
    fields["mask"] &= torch.arange(fields["mask"].shape[1]) % 3 != 1  # tool output
    # The engine is the only policy that prime-rl knows.
    expected = loss_and_gradient(objective, fields | {"rollout_log_probs": fields["old_log_probs"]})
    torch.testing.assert_close(step(objective, fields), expected)


@pytest.mark.parametrize(("objective", "says"), REFUSED["prime_rl"])
def test_what_prime_rl_cannot_express_is_refused(objective, says, fields):
    with pytest.raises(UnsupportedOption, match=says):
        step(objective_of(objective), fields)
