"""`assert_objective`: right losses pass, wrong ones do not, and the generated batches tell all presets apart."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from policygrain import TokenBatch, method
from policygrain.errors import UserError
from policygrain.integrations.conformance import Outcome, assert_objective, batches, compare, difference, outcome_of
from policygrain.objective import method_names

Loss = Callable[..., Tensor]


def seq_mean(x: Tensor, mask: Tensor) -> Tensor:
    lengths = mask.sum(1)
    return -((x * mask).sum(1) / lengths.clamp(min=1)).sum() / (lengths > 0).sum()


def clipped(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, high: float = 0.2) -> Tensor:
    ratio = (log_probs - old_log_probs).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(0.8, 1 + high) * advantages)


def grpo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return seq_mean(clipped(log_probs, old_log_probs, advantages[:, None]), mask)


def plus_one(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return grpo(log_probs, old_log_probs, advantages, mask) + 1


def dapo_of_verl(log_prob: Any, old_log_prob: Any, advantages: Any, response_mask: Any) -> tuple[Tensor, int]:
    return -(clipped(log_prob, old_log_prob, advantages, 0.28) * response_mask).sum() / response_mask.sum(), 0


def dr_grpo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, max_length: int) -> Tensor:
    u = clipped(log_probs, old_log_probs, advantages[:, None])
    return -(u * mask).sum() / ((mask.sum(1) > 0).sum() * max_length)


def of_trl(per_token_logps: Tensor, old_per_token_logps: Tensor, advantages: Tensor, **fields: Tensor) -> Tensor:
    return grpo(per_token_logps, old_per_token_logps, advantages, fields["mask"])


def changed(name: str, **parts: Any) -> Loss:
    chosen = method(name, **parts)
    return lambda **fields: chosen.loss(TokenBatch(**fields))


# A loss, the preset that it is, and how it is compared.
RIGHT: dict[str, tuple[Loss, str, dict[str, bool]]] = {
    "parameters of this package": (dr_grpo, "dr_grpo", {}),
    "names of TRL": (of_trl, "grpo", {}),
    "names of verl": (dapo_of_verl, "dapo", {"per_token_advantages": True}),
    "another value": (plus_one, "grpo", {"value": False}),
    **{name: (changed(name), name, {}) for name in method_names()},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_written_by_hand_and_every_preset_is_the_preset(name):
    loss, preset, how = RIGHT[name]
    compared = assert_objective(loss, preset, **how)
    assert (compared.cosine, compared.norm) == pytest.approx((1, 1))


def rows_without_tokens_counted(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    u = clipped(log_probs, old_log_probs, advantages[:, None]) * mask
    return -(u.sum(1) / mask.sum(1).clamp(min=1)).mean()


# What is wrong, the preset, and the loss.
WRONG: dict[str, tuple[str, Loss]] = {
    "token mean": ("grpo", changed("grpo", aggregation="token_mean")),
    "no clip": ("grpo", changed("grpo", clip=None)),
    "ratio 1": ("grpo", lambda log_probs, advantages, mask: grpo(log_probs, log_probs.detach(), advantages, mask)),
    "padding in the loss": (
        "grpo",
        lambda log_probs, mask, **f: grpo(log_probs, f["old_log_probs"], f["advantages"], torch.ones_like(mask)),
    ),
    "rows without tokens": ("grpo", rows_without_tokens_counted),
    "band exchanged": ("gspo", changed("gspo", clip={"low": 4e-4, "high": 3e-4})),
    "ratio of tokens": ("gspo", changed("gspo", ratio="token")),
}


@pytest.mark.parametrize(("preset", "function"), WRONG.values(), ids=WRONG)
def test_a_wrong_loss_is_found(preset, function):
    with pytest.raises(AssertionError, match=f"it is not {preset}: it differs in") as raised:
        assert_objective(function, preset)
    clip = method(preset).clip.settings
    assert f"clip ppo (low {clip['low']}, high {clip['high']})" in str(raised.value), "what the preset is"


def test_a_row_without_tokens_can_be_left_out():
    """All that `rows_without_tokens_counted` has wrong."""
    compared = compare(rows_without_tokens_counted, "grpo")
    assert [problem.split("'")[1] for problem in compared.problems] == ["a response without tokens"]
    assert_objective(rows_without_tokens_counted, "grpo", without=["a response without tokens"])
    with pytest.raises(UserError, match=r"there is no batch nonsense. There are: log-ratios of 0"):
        assert_objective(grpo, "grpo", without=["nonsense"])


def test_a_message_says_which_token_differs_by_how_much():
    """The first one in the batch."""

    def two_tokens(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return grpo(log_probs, old_log_probs, advantages, mask) + 0.5 * log_probs[2, 3] + 7 * log_probs[4, 0]

    fields = batches()["log-ratios of 0.1"]
    (problem,) = compare(two_tokens, "grpo", {"mine": fields}).problems
    value, gradients = outcome_of(method("grpo"), fields)
    expected = float(gradients["log_probs"][2, 3])
    assert "response 3, token 4: the gradient by log_probs is" in problem
    assert all(f"{x:.4g}" in problem for x in (expected + 0.5, expected)) and f"{value:.6g}" in problem


NO_LOSS: dict[str, Loss] = {
    "no gradient by log_probs. Is the ratio detached": lambda log_probs: log_probs.detach().sum(),
    r"scalar tensor, and this is of shape \(8, 12\)": lambda log_probs: log_probs,
    "the value is -inf": lambda log_probs, mask: (log_probs / mask).sum(),
    "parameter 'data' is none of advantages": lambda data, log_probs: log_probs.sum(),
    "no parameter `log_probs`": lambda advantages: advantages.sum(),
    "gradient is the same, but the value is .*value=False": plus_one,
}


@pytest.mark.parametrize("says", NO_LOSS)
def test_what_is_no_loss_or_has_another_value_is_said(says):
    with pytest.raises((AssertionError, UserError), match=says):
        assert_objective(NO_LOSS[says], "grpo")


def test_the_batches_tell_all_presets_apart():
    """GSPO-token is GSPO where a response has one advantage (2507.18071 section 4.3).

    Decoupled PPO is a clip of token ratios where the caller gives no weights for the engine, and so is Clip-Cov, which
    detaches one token in 5000.
    """
    made = batches()
    outcomes: dict[str, dict[str, Outcome]] = {
        name: {batch: outcome_of(method(name), fields) for batch, fields in made.items()} for name in method_names()
    }
    equal = {
        (one, other)
        for one, other in combinations(outcomes, 2)
        if not any(difference(outcomes[one][b], outcomes[other][b], "", b, 1e-5, True) for b in made)
    }
    assert equal == {("gspo", "gspo_token"), ("clip_cov", "decoupled")}
    fields = made["log-ratios of 0.001"]
    by_token = fields["advantages"][:, None] * torch.linspace(0, 1, fields["mask"].shape[1])
    assert compare(changed("gspo"), "gspo_token", {"by token": fields | {"advantages": by_token}}).problems


def test_the_batches_clip_tokens_on_both_sides_of_every_band():
    for name in method_names():
        chosen = method(name)
        metrics = [chosen.loss(TokenBatch(**fields)).metrics for fields in batches(chosen).values()]
        if chosen.clip.settings.get("low"):
            for side in ("clip_fraction_low", "clip_fraction_high"):
                assert any(found[side] > 0 for found in metrics), (name, side)
