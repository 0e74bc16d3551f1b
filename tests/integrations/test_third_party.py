"""polgrad, another library of objectives as data: its losses and the presets that both have (`make test-peers`)."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from policygrain import Method, TokenBatch, method
from policygrain.integrations.conformance import assert_objective

polgrad = pytest.importorskip("polgrad", reason="polgrad is not installed here; `make test-peers` has it")
from polgrad import losses, registry  # noqa: E402
from polgrad.testing import assert_conforms  # noqa: E402

# Its algorithms, and the same objective here. A KL to the initial model, and rewards, are no part of these losses.
SAME: dict[str, Method] = {
    "ppo": method("dapo", clip={"high": 0.2}),
    "grpo": method("grpo"),
    "dr_grpo": method("dr_grpo"),
    "dapo": method("dapo"),
    "gspo": method("gspo"),
    "gspo_token": method("gspo_token"),
    "cispo": method("cispo", clip={"cap": 1.2}),
    "rloo": method("reinforce", aggregation="seq_mean_token_sum", clip={"name": "likelihood", "cap": None}),
    "reinforce_pp": method("grpo"),
    "grpo_tis": method("grpo"),
}
# polgrad refuses a response without tokens.
REFUSED = ["a response without tokens"]


def of_polgrad(name: str) -> losses.PolicyLossConfig:
    config = replace(registry.get(name).loss, kl=None, is_correction=None)
    return replace(config, norm_len=12) if name == "dr_grpo" else config


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_its_loss_is_ours(name):
    """In its own words and in ours: its check of our loss, and our check of its loss."""

    def theirs(
        logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor, max_length: int
    ) -> Any:
        given = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}
        return losses.policy_loss(of_polgrad(name), **given, response_mask=response_mask).loss

    def ours(*, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
        batch = TokenBatch(logprobs, old_logprobs, advantages, response_mask, max_length=12)
        return SAME[name].loss(batch).loss

    assert_objective(theirs, SAME[name], without=REFUSED)
    assert_conforms(ours, of_polgrad(name), n_cases=8)
