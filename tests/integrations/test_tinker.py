"""Losses for Tinker: loss and gradient are those of the whole step, and what cannot be is refused.

Of its SDK the static method that calls a loss is used, without a server: what is sent is −∂loss/∂log-probability.
"""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policygrain import method
from policygrain.integrations.options import UnsupportedOption
from policygrain.integrations.tinker import loss_function

from ..support.batches import FOUR, loss_and_gradient, random_fields
from . import REFUSED

TOOLS = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1])  # 0: tool output
NAMES = ("grpo", "dapo", "gspo", "tepo_v1", "tepo", "mpo", "kl_cov", "dr_grpo")
A3PO = method("a3po", sampler={"correction_cap": 1.1})
OBJECTIVES = [*map(method, NAMES), A3PO, method("turn_ratio", clip={"low": 0.05, "high": 0.05})]
each_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=[*NAMES, "a3po", "turns"])


@pytest.fixture
def fields():
    """In float32 as Tinker sends them, and without entropies; the engine is the old policy."""
    made = random_fields(FOUR, 3, 0.4)
    floats = {key: made[key].float() for key in ("log_probs", "old_log_probs", "advantages")}
    others = {"mask": made["mask"] & TOOLS.bool(), "rollout_log_probs": floats["old_log_probs"]}
    return floats | others | {"staleness": torch.tensor([0, 1, 2, 5])}


def inputs_of(fields: dict[str, Any], i: int) -> dict[str, torch.Tensor]:
    own, n = slice(0, FOUR[i]), FOUR[i]
    of_responses = {key: fields[key][i].expand(n) for key in ("advantages", "staleness")}
    return of_responses | {
        "target_tokens": torch.ones(n, dtype=torch.long),
        "logprobs": fields["old_log_probs"][i, own],
        "mask": fields["mask"][i, own].float(),
    }


def step_of(fields: dict[str, Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """What Tinker hands to a loss: data, and the log-probabilities of each."""
    log_probs = [fields["log_probs"][i, :n].clone().requires_grad_() for i, n in enumerate(FOUR)]
    return [SimpleNamespace(loss_fn_inputs=inputs_of(fields, i)) for i in range(len(FOUR))], log_probs


@pytest.mark.filterwarnings("ignore:tepo:UserWarning")
@each_objective
def test_loss_and_gradient_are_those_of_the_whole_step(objective, fields):
    """Turns are those of the mask; ages are given."""
    data, log_probs = step_of(fields)
    loss, metrics = loss_function(objective, max_length=fields["mask"].shape[1])(data, log_probs)
    want, gradient = loss_and_gradient(objective, fields)
    torch.testing.assert_close(loss.detach(), want)
    for i, own in enumerate(torch.autograd.grad(loss, log_probs)):
        torch.testing.assert_close(own, gradient[i, : FOUR[i]])
    assert ("policygrain/mask_signal_covariance" in metrics) == (objective.name == "tepo")


@pytest.mark.filterwarnings("ignore:tepo:UserWarning")
@each_objective
def test_what_the_sdk_sends_is_the_negative_gradient(objective, fields):
    tinker = pytest.importorskip("tinker", reason="Tinker is not installed here; `make test-peers` has it")
    from tinker.lib.public_interfaces.training_client import TrainingClient

    types = tinker.types
    data, outputs = [], []
    for i, length in enumerate(FOUR):
        tensors = {key: types.TensorData.from_torch(value) for key, value in inputs_of(fields, i).items()}
        data.append(types.Datum(model_input=types.ModelInput.from_ints([1] * length), loss_fn_inputs=tensors))
        outputs.append({"logprobs": types.TensorData.from_torch(fields["log_probs"][i, :length])})
    result = types.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})
    loss = loss_function(objective, max_length=fields["mask"].shape[1])
    sent = TrainingClient._compute_custom_loss(data, loss, result)
    want, gradient = loss_and_gradient(objective, fields)
    assert sent.loss_sum == pytest.approx(float(want), rel=1e-6)
    for i, datum in enumerate(sent.data):
        weights = torch.as_tensor(datum.loss_fn_inputs["weights"].data).reshape(-1)
        torch.testing.assert_close(weights, -gradient[i, : FOUR[i]], rtol=1e-6, atol=1e-9)


def test_a_correction_that_the_loss_computes_is_no_setting_without_effect():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_function("a3po")


# The datum, the method, what is changed in its inputs (None: left out), and what is said.
SPOILT: list[tuple[int, Any, dict[str, Any], str]] = [
    (2, "dapo", {"advantages": torch.ones(2)}, r"datum 2: advantages has shape \(2,\), target_tokens 9"),
    (1, "dapo", {"mask": None}, "datum 1: loss_fn_inputs has no 'mask'; it has "),
    (1, A3PO, {"staleness": None}, "datum 1: loss_fn_inputs has no 'staleness'"),
]


@pytest.mark.parametrize(("datum", "name", "change", "says"), SPOILT, ids=[says for *_, says in SPOILT])
def test_a_field_that_is_missing_or_has_another_length_is_named(datum, name, change, says, fields):
    data, log_probs = step_of(fields)
    given = data[datum].loss_fn_inputs | change
    data[datum].loss_fn_inputs = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(UnsupportedOption, match=says):
        loss_function(name)(data, log_probs)


@pytest.mark.parametrize(("name", "says"), REFUSED["tinker"])
def test_what_cannot_be_given_or_expressed_is_refused(name, says):
    with pytest.raises(UnsupportedOption, match=says):
        loss_function(name)
