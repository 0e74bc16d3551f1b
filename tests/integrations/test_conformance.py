"""`assert_objective`: right losses pass, wrong ones do not, and the generated batches tell all presets apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from policygrain import TokenBatch, method
from policygrain.errors import UserError
from policygrain.integrations.conformance import Outcome, assert_objective, compare, difference, outcome_of
from policygrain.integrations.generated import batches
from policygrain.objective import method_names

Loss = Callable[..., Tensor]


def surrogate(r: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)


def seq_mean(x: Tensor, mask: Tensor) -> Tensor:
    lengths = mask.sum(1)
    return -((x * mask).sum(1) / lengths.clamp(min=1)).sum() / (lengths > 0).sum()


def token_mean(x: Tensor, mask: Tensor) -> Tensor:
    return -(x * mask).sum() / mask.sum()


def ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    return (log_probs - old_log_probs).exp()


def sequence_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    mean = ((log_probs - old_log_probs) * mask).sum(1) / mask.sum(1).clamp(min=1)
    return mean.exp()[:, None].expand_as(log_probs)


def from_ratios(loss: Callable[[Tensor, Tensor, Tensor], Tensor], of_response: bool = False) -> Loss:
    """A loss function from one of the ratios, advantages and mask, all [batch, tokens]."""

    def function(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        r = sequence_ratio(log_probs, old_log_probs, mask) if of_response else ratio(log_probs, old_log_probs)
        return loss(r, advantages[:, None].expand_as(r), mask)

    return function


def ppo(r: Tensor, a: Tensor) -> Tensor:
    return surrogate(r, a, 0.2, 0.2)


grpo = from_ratios(lambda r, a, mask: seq_mean(ppo(r, a), mask))
gspo = from_ratios(lambda r, a, mask: seq_mean(surrogate(r, a, 3e-4, 4e-4), mask), of_response=True)


def dapo_of_verl(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor
) -> tuple[Tensor, int]:
    return token_mean(surrogate(ratio(log_prob, old_log_prob), advantages, 0.2, 0.28), response_mask), 0


def cispo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    weight = ratio(log_probs, old_log_probs).clamp(max=5.0).detach()
    return token_mean(weight * advantages[:, None] * log_probs, mask)


def dr_grpo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, max_length: int) -> Tensor:
    u = surrogate(ratio(log_probs, old_log_probs), advantages[:, None], 0.2, 0.2)
    return -(u * mask).sum() / ((mask.sum(1) > 0).sum() * max_length)


def of_trl(per_token_logps: Tensor, old_per_token_logps: Tensor, advantages: Tensor, **fields: Tensor) -> Tensor:
    return grpo(per_token_logps, old_per_token_logps, advantages, fields["mask"])


RIGHT: dict[str, Loss] = {"grpo": grpo, "gspo": gspo, "dr_grpo": dr_grpo}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_written_by_hand_is_the_preset(name: str) -> None:
    compared = assert_objective(RIGHT[name], name)
    assert (compared.cosine, compared.norm) == pytest.approx((1, 1))


def test_the_names_of_verl_and_advantages_per_token() -> None:
    assert_objective(dapo_of_verl, "dapo", per_token_advantages=True)
    assert_objective(of_trl, "grpo")


def test_another_value_with_the_same_gradient() -> None:
    with pytest.raises(AssertionError, match=r"gradient is the same, but the value is .*value=False"):
        assert_objective(
            lambda log_probs, old_log_probs, advantages, mask: grpo(log_probs, old_log_probs, advantages, mask) + 1,
            "grpo",
        )
    weights = method("cispo").clip.settings
    assert weights["cap"] == 5.0
    assert_objective(cispo, "cispo", value=False)


@pytest.mark.parametrize("name", method_names())
def test_every_preset_is_itself(name: str) -> None:
    chosen = method(name)
    compared = assert_objective(lambda **fields: chosen.loss(TokenBatch(**fields)), name)
    assert compared.norm == pytest.approx(1)


def mean_of_ratios(r: Tensor, a: Tensor, mask: Tensor) -> Tensor:
    mean = (r * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return seq_mean(surrogate(mean.expand_as(r), a, 3e-4, 4e-4), mask)


rows_without_tokens_counted = from_ratios(
    lambda r, a, mask: -((ppo(r, a) * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
)
# What is wrong, the preset, and the loss.
WRONG: dict[str, tuple[str, Loss]] = {
    "token mean": ("grpo", from_ratios(lambda r, a, mask: token_mean(ppo(r, a), mask))),
    "maximum": ("grpo", from_ratios(lambda r, a, m: seq_mean(torch.maximum(r * a, r.clamp(0.8, 1.2) * a), m))),
    "no clip": ("grpo", from_ratios(lambda r, a, mask: seq_mean(r * a, mask))),
    "ratio 1": ("grpo", from_ratios(lambda r, a, mask: seq_mean(ppo(r / r.detach(), a), mask))),
    "padding in the loss": ("grpo", from_ratios(lambda r, a, m: seq_mean(ppo(r, a), torch.ones_like(m)))),
    "rows without tokens": ("grpo", rows_without_tokens_counted),
    "band exchanged": ("gspo", from_ratios(lambda r, a, m: seq_mean(surrogate(r, a, 4e-4, 3e-4), m), of_response=True)),
    "mean of ratios": ("gspo", from_ratios(mean_of_ratios)),
}


@pytest.mark.parametrize(("preset", "function"), WRONG.values(), ids=WRONG)
def test_a_wrong_loss_is_found(preset: str, function: Loss) -> None:
    """With what the preset is."""
    with pytest.raises(AssertionError, match=f"it is not {preset}: it differs in") as raised:
        assert_objective(function, preset)
    lines = str(raised.value).splitlines()
    assert all("batch '" in line and f"of {preset} is" in line for line in lines[1:-2])
    clip = method(preset).clip.settings
    assert f"clip ppo (low {clip['low']}, high {clip['high']})" in lines[-1]
    assert "aggregation seq_mean_token_mean" in lines[-1]


def test_a_row_without_tokens_can_be_left_out() -> None:
    """All that `rows_without_tokens_counted` has wrong."""
    compared = compare(rows_without_tokens_counted, "grpo")
    assert [problem.split("'")[1] for problem in compared.problems] == ["a response without tokens"]
    assert_objective(rows_without_tokens_counted, "grpo", without=["a response without tokens"])
    with pytest.raises(UserError, match=r"there is no batch nonsense. There are: log-ratios of 0"):
        assert_objective(grpo, "grpo", without=["nonsense"])


def test_a_message_says_which_token_differs_by_how_much() -> None:
    """The first one in the batch."""

    def two_tokens(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return grpo(log_probs, old_log_probs, advantages, mask) + 0.5 * log_probs[2, 3] + 7 * log_probs[4, 0]

    fields = batches()["log-ratios of 0.1"]
    (problem,) = compare(two_tokens, "grpo", {"mine": fields}).problems
    value, gradients = outcome_of(method("grpo"), fields)
    expected = float(gradients["log_probs"][2, 3])
    assert problem.startswith(
        f"batch 'mine': response 3, token 4: the gradient by log_probs is {expected + 0.5:.4g}, that of grpo is "
        f"{expected:.4g}; the value is "
    )
    assert problem.endswith(f"that of grpo is {value:.6g}.")


def test_what_is_no_loss_is_said() -> None:
    with pytest.raises(AssertionError, match=r"no gradient by log_probs. Is the ratio detached"):
        assert_objective(lambda log_probs: log_probs.detach().sum(), "grpo")
    with pytest.raises(AssertionError, match=r"scalar tensor, and this is of shape \(8, 12\)"):
        assert_objective(lambda log_probs: log_probs, "grpo")
    with pytest.raises(AssertionError, match="the value is -inf"):
        assert_objective(lambda log_probs, mask: (log_probs / mask).sum(), "grpo")
    with pytest.raises(UserError, match="parameter 'data' is none of advantages"):
        assert_objective(lambda data, log_probs: log_probs.sum(), "grpo")
    with pytest.raises(UserError, match="no parameter `log_probs`"):
        assert_objective(lambda advantages: advantages.sum(), "grpo")


def test_the_batches_tell_all_presets_apart() -> None:
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
    fields = {
        n: f | {"advantages": f["advantages"][:, None] * torch.linspace(0, 1, f["mask"].shape[1])}
        for n, f in made.items()
    }
    assert compare(lambda **f: method("gspo").loss(TokenBatch(**f)), "gspo_token", fields).problems


def test_the_batches_clip_tokens_on_both_sides_of_every_band() -> None:
    for name in method_names():
        chosen = method(name)
        metrics = [chosen.loss(TokenBatch(**fields)).metrics for fields in batches(chosen).values()]
        if chosen.clip.settings.get("low"):
            for side in ("clip_fraction_low", "clip_fraction_high"):
                assert any(found[side] > 0 for found in metrics), (name, side)
