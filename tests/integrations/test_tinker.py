"""The loss for Tinker through the SDK's static method, without a server: what is sent is −∂loss/∂log-probability."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policygrain import TokenBatch, method
from policygrain.integrations.options import UnsupportedOption
from policygrain.integrations.tinker import loss_function

from ..support.batches import random_fields

LENGTHS = [7, 3, 9, 5]
TOOLS = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1])  # 0: tool output
NAMES = ["grpo", "dapo", "gspo", "tepo_v1", "tepo", "mpo", "kl_cov", "dr_grpo"]


@pytest.fixture
def fields() -> dict[str, Any]:
    """In float32 as Tinker sends them, and without entropies."""
    made = random_fields(LENGTHS, 3, 0.4)
    floats = {key: made[key].float() for key in ("log_probs", "old_log_probs", "advantages")}
    return floats | {"mask": made["mask"]}


def inputs_of(fields: dict[str, Any], i: int) -> dict[str, torch.Tensor]:
    own = slice(0, LENGTHS[i])
    return {
        "target_tokens": torch.ones(LENGTHS[i], dtype=torch.long),
        "logprobs": fields["old_log_probs"][i, own],
        "advantages": fields["advantages"][i].expand(LENGTHS[i]),
        "mask": fields["mask"][i, own].float(),
    }


def expected(name: str, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = fields["log_probs"].clone().requires_grad_()
    loss = method(name).loss(TokenBatch(**fields | {"log_probs": log_probs})).loss
    return loss.detach(), torch.autograd.grad(loss, log_probs)[0]


@pytest.mark.filterwarnings("ignore:tepo:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_are_those_of_the_whole_step(name: str, fields: dict[str, Any]) -> None:
    log_probs = [fields["log_probs"][i, :n].clone().requires_grad_() for i, n in enumerate(LENGTHS)]
    data = [SimpleNamespace(loss_fn_inputs=inputs_of(fields, i)) for i in range(len(LENGTHS))]
    loss, metrics = loss_function(name)(data, log_probs)
    want, gradient = expected(name, fields)
    torch.testing.assert_close(loss.detach(), want)
    for i, own in enumerate(torch.autograd.grad(loss, log_probs)):
        torch.testing.assert_close(own, gradient[i, : LENGTHS[i]])
    assert ("policygrain/mask_signal_covariance" in metrics) == (name == "tepo")


@pytest.mark.filterwarnings("ignore:tepo:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_what_the_sdk_sends_is_the_negative_gradient(name: str, fields: dict[str, Any]) -> None:
    tinker = pytest.importorskip("tinker", reason="Tinker is not installed here; `make test-peers` has it")
    from tinker.lib.public_interfaces.training_client import TrainingClient

    types = tinker.types
    data, outputs = [], []
    for i, length in enumerate(LENGTHS):
        tensors = {key: types.TensorData.from_torch(value) for key, value in inputs_of(fields, i).items()}
        data.append(types.Datum(model_input=types.ModelInput.from_ints([1] * length), loss_fn_inputs=tensors))
        outputs.append({"logprobs": types.TensorData.from_torch(fields["log_probs"][i, :length])})
    result = types.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})
    sent = TrainingClient._compute_custom_loss(data, loss_function(name), result)
    want, gradient = expected(name, fields)
    assert sent.loss_sum == pytest.approx(float(want), rel=1e-6)
    for i, datum in enumerate(sent.data):
        weights = torch.as_tensor(datum.loss_fn_inputs["weights"].data).reshape(-1)
        torch.testing.assert_close(weights, -gradient[i, : LENGTHS[i]], rtol=1e-6, atol=1e-9)


def test_a_correction_that_the_loss_computes_is_no_setting_without_effect() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_function("a3po")


# Four responses of another age each.
A3PO = method("a3po", sampler={"correction_cap": 1.1})
PROMPTS = {"groups": torch.tensor([3, 3, 8, 8]), "segments": torch.arange(9).expand(4, 9) // 2}
AGES = torch.tensor([0, 1, 2, 5])
BY_TURN = method("turn_ratio", aggregation="turn_mean_token_mean", clip={"low": 0.05, "high": 0.05})
BY_PROMPT = method("dapo", aggregation="prompt_mean", ratio={"name": "block", "layout": "segments"})


@pytest.mark.parametrize(
    "objective", [BY_TURN, BY_PROMPT, method("gepo"), A3PO], ids=["turns", "segments", "gepo", "a3po"]
)
def test_turns_are_those_of_the_mask_and_prompts_and_segments_are_given(objective: Any, fields: dict[str, Any]) -> None:
    fields["mask"] &= TOOLS.bool()
    log_probs = [fields["log_probs"][i, :n].clone().requires_grad_() for i, n in enumerate(LENGTHS)]
    groups, segments = PROMPTS["groups"], PROMPTS["segments"]
    more = [
        {"groups": groups[i].expand(n), "segments": segments[i, :n], "staleness": AGES[i].expand(n)}
        for i, n in enumerate(LENGTHS)
    ]
    data = [SimpleNamespace(loss_fn_inputs=inputs_of(fields, i) | more[i]) for i in range(len(LENGTHS))]
    loss, _ = loss_function(objective)(data, log_probs)
    engine = {"rollout_log_probs": fields["old_log_probs"], "staleness": AGES}
    want = objective.loss(TokenBatch(**fields | PROMPTS | engine)).loss
    torch.testing.assert_close(loss.detach(), want)
    if objective.needs - {"turns"}:
        del data[1].loss_fn_inputs[min(objective.needs)]
        with pytest.raises(UnsupportedOption, match=f"datum 1: loss_fn_inputs has no '{min(objective.needs)}'"):
            loss_function(objective)(data, log_probs)


def test_a_field_that_is_missing_or_has_another_length_is_named(fields: dict[str, Any]) -> None:
    log_probs = [fields["log_probs"][i, :n] for i, n in enumerate(LENGTHS)]
    data = [SimpleNamespace(loss_fn_inputs=inputs_of(fields, i)) for i in range(len(LENGTHS))]
    data[2].loss_fn_inputs["advantages"] = torch.ones(2)
    with pytest.raises(UnsupportedOption, match=r"datum 2: advantages has shape \(2,\), target_tokens 9"):
        loss_function("dapo")(data, log_probs)
    data[2] = SimpleNamespace(loss_fn_inputs=inputs_of(fields, 2))
    del data[1].loss_fn_inputs["mask"]
    with pytest.raises(UnsupportedOption, match="datum 1: loss_fn_inputs has no 'mask'; it has 'target_tokens'"):
        loss_function("dapo")(data, log_probs)
    data[1].loss_fn_inputs["mask"] = torch.ones(3)
    for datum, length in zip(data, LENGTHS, strict=True):
        datum.loss_fn_inputs["groups"] = torch.arange(length) // 8
    with pytest.raises(UnsupportedOption, match="datum 2: groups differs between tokens"):
        loss_function("gepo")(data, log_probs)


@pytest.mark.parametrize(("name", "says"), [("mpo_heads", "prediction heads"), ("tepo_max_entropy", "an entropy")])
def test_what_tinker_cannot_give_is_refused(name: str, says: str) -> None:
    with pytest.raises(UnsupportedOption, match=says):
        loss_function(name)
