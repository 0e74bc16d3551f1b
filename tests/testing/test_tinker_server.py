"""`assert_tinker` on a server that is running: its losses under Tinker's names (docs/conformance.md says how).

POLICYGRAIN_TINKER is its address, POLICYGRAIN_TINKER_MODEL the base model that it serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from policygrain import Method, method
from policygrain.testing import assert_tinker

ADDRESS, MODEL = os.environ.get("POLICYGRAIN_TINKER"), os.environ.get("POLICYGRAIN_TINKER_MODEL")
LENGTHS = [7, 3, 9, 5]
BAND = {"low": 0.2, "high": 0.2}
SMALL = 2e-4  # of a tiny model: larger steps change log-probabilities by more than their gradient says
# Tinker's loss → the objective that it is. Tinker's are sums over tokens, so only the direction is compared.
LOSSES: dict[str, Method] = {
    "ppo": method("dapo", clip=BAND),
    "importance_sampling": method("dapo", clip=None),
    "cispo": method("cispo", clip={"low": 0.8, "cap": 1.2}),
}

if not (ADDRESS and MODEL):
    pytest.skip("POLICYGRAIN_TINKER and POLICYGRAIN_TINKER_MODEL name no server", allow_module_level=True)
tinker = pytest.importorskip("tinker", reason="Tinker is not installed here; `make test-peers` has it")


@pytest.fixture(scope="module")
def make_client() -> Callable[[], Any]:
    service = tinker.ServiceClient(base_url=ADDRESS, api_key="tml-none")
    return lambda: service.create_lora_training_client(base_model=MODEL, rank=8, seed=0).result()


@pytest.fixture(scope="module")
def data(make_client: Callable[[], Any]) -> list[Any]:
    """Random tokens, whose log-probabilities under the sampler differ from the model's by noise."""
    types, generator = tinker.types, torch.Generator().manual_seed(0)
    made = []
    for length in LENGTHS:
        tokens = torch.randint(5, 40, (length + 1,), generator=generator)
        advantage = float(torch.randn((), generator=generator))
        inputs = {
            "target_tokens": tokens[1:],
            "mask": torch.ones(length),
            "weights": torch.ones(length),
            "advantages": torch.full((length,), advantage),
            "logprobs": torch.zeros(length),
        }
        made.append((tokens[:-1].tolist(), inputs))

    def datum(tokens: list[int], inputs: dict[str, torch.Tensor]) -> Any:
        tensors = {key: types.TensorData.from_torch(value) for key, value in inputs.items()}
        return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=tensors)

    outputs = make_client().forward([datum(*one) for one in made], "cross_entropy").result().loss_fn_outputs
    seen = [torch.as_tensor(output["logprobs"].data) for output in outputs]
    for (_, inputs), now in zip(made, seen, strict=True):
        inputs["logprobs"] = now + 0.3 * torch.randn(now.shape, generator=generator)
    return [datum(*one) for one in made]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_the_server_is_what_its_name_says(name: str, make_client: Any, data: list[Any]) -> None:
    factor = assert_tinker(make_client, data, name, LOSSES[name], learning_rate=SMALL)
    assert factor == pytest.approx(sum(LENGTHS), rel=0.02)


def test_another_objective_is_not_its_ppo(make_client: Any, data: list[Any]) -> None:
    with pytest.raises(AssertionError, match="the endpoint's 'ppo' is not gspo"):
        assert_tinker(make_client, data, "ppo", "gspo", learning_rate=SMALL)
