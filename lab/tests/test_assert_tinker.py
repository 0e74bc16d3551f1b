"""`assert_tinker` on endpoints in this process; on a server: test_skyrl.py."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.integrations.conformance import random_fields
from policygrain_lab.conformance.tinker import assert_tinker

types = pytest.importorskip("tinker", reason="Tinker is not installed here; `make test-peers` has it").types
LENGTHS = [7, 3, 9, 5]


class Client:
    """The calls of tinker's TrainingClient on log-probabilities that are parameters, with Adam as in its server."""

    def __init__(
        self, fields: dict[str, Any], low: float = 0.2, on_policy: bool = False, divisor: str | None = None
    ) -> None:
        self.rows = [row[:n].clone().requires_grad_() for row, n in zip(fields["log_probs"], LENGTHS, strict=True)]
        self.low, self.on_policy, self.divisor = low, on_policy, divisor

    def forward(self, data: list[Any], loss_fn: str) -> Any:
        assert loss_fn == "cross_entropy"
        outputs = [{"logprobs": types.TensorData(data=row.tolist(), dtype="float32")} for row in self.rows]
        return SimpleNamespace(result=lambda: SimpleNamespace(loss_fn_outputs=outputs))

    def forward_backward(self, data: list[Any], loss_fn: str, loss_fn_config: Any = None) -> Any:
        total = torch.zeros((), dtype=torch.float64)
        for datum, row in zip(data, self.rows, strict=True):
            inputs = {name: torch.as_tensor(value.data) for name, value in datum.loss_fn_inputs.items()}
            if loss_fn == "cross_entropy":
                weights = inputs["weights"]
                divisors = {"weights": weights.sum().clamp(min=1e-9), "length": len(weights)}
                total = total - (weights * row[: len(weights)]).sum() / divisors.get(self.divisor, 1)
                continue
            assert loss_fn == "ppo" and "mask" not in inputs
            ratio = (row - (row.detach() if self.on_policy else inputs["logprobs"])).exp()
            a = inputs["advantages"]
            total = total - torch.minimum(ratio * a, ratio.clamp(1 - self.low, 1.28) * a).sum()
        total.backward()
        return SimpleNamespace(result=lambda: None)

    def optim_step(self, adam: Any) -> Any:
        assert adam.beta1 == adam.beta2 == 0
        for row in self.rows:
            if row.grad is not None:
                row.data -= adam.learning_rate * row.grad / (row.grad.abs() + adam.eps)
                row.grad = None
        return SimpleNamespace(result=lambda: None)


@pytest.fixture
def fields():
    return random_fields(LENGTHS, 1, 0.3)


@pytest.fixture
def data(fields):
    made = []
    for i, n in enumerate(LENGTHS):
        inputs = {
            "target_tokens": torch.ones(n, dtype=torch.long),
            "logprobs": fields["old_log_probs"][i, :n].float(),
            "advantages": fields["advantages"][i].expand(n).float(),
            "mask": torch.ones(n),
        }
        tensors = {name: types.TensorData.from_torch(value) for name, value in inputs.items()}
        made.append(types.Datum(model_input=types.ModelInput.from_ints([1] * n), loss_fn_inputs=tensors))
    return made


def test_an_endpoint_whose_loss_is_the_preset_up_to_a_factor(fields, data):
    """Tinker's losses are sums over tokens, DAPO's is their mean."""
    factor = assert_tinker(lambda: Client(fields), data, "ppo", "dapo")
    assert factor == pytest.approx(sum(LENGTHS), rel=0.01)


@pytest.mark.parametrize("wrong", [{"low": 0.05}, {"on_policy": True}])
def test_an_endpoint_with_another_loss_is_found(wrong, fields, data):
    with pytest.raises(AssertionError, match=r"the endpoint's 'ppo' is not dapo: .* cosine 0"):
        assert_tinker(lambda: Client(fields, **wrong), data, "ppo", "dapo")


@pytest.mark.parametrize("divisor", ["weights", "length"])
def test_custom_losses_that_are_divided_are_found(divisor, fields, data):
    with pytest.raises(
        AssertionError, match=r"'cross_entropy' is not a sum .* A custom loss of the SDK is another loss"
    ):
        assert_tinker(lambda: Client(fields, divisor=divisor), data, "ppo", "dapo")


def test_data_of_the_model_itself_are_refused(fields, data):
    fields["log_probs"] = fields["old_log_probs"]
    with pytest.raises(UserError, match="all ratios are 1"):
        assert_tinker(lambda: Client(fields), data, "ppo", "dapo")
