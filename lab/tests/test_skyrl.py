"""`assert_tinker` and a custom loss on SkyRL's Tinker-compatible server, on a CPU: `make test-skyrl` (two minutes)."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain import method
from policygrain.integrations.tinker import loss_function
from policygrain_lab.conformance.tinker import assert_tinker

WITH_IT = "is not installed here; `make test-skyrl` has an environment with it"
pytest.importorskip("flax", reason=f"SkyRL with JAX {WITH_IT}")
pytest.importorskip("skyrl.tinker", reason=f"SkyRL {WITH_IT}")
types = pytest.importorskip("tinker", reason=f"Tinker {WITH_IT}").types
LENGTHS, PROMPT, VOCABULARY = [5, 3, 6], 2, 64
ADVANTAGES = [1.0, -0.5, 0.7]
STARTS = 180  # seconds that the server may take


def make_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen3Config(vocab_size=VOCABULARY, tie_word_embeddings=True, dtype="float32", **sizes, **heads)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@pytest.fixture(scope="module")
def make_client(tmp_path_factory):
    """New TrainingClients of a server that the tests start."""
    import tinker

    folder = tmp_path_factory.mktemp("server")
    make_model(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The server starts its engine by the `uv run` that it was started by.
    python = ["uv", "run", "--no-project", "--python", sys.executable, "-m", "skyrl.tinker.api"]
    options = {
        "base-model": folder / "model",
        "backend": "jax",
        "backend-config": '{"max_lora_adapters": 64, "max_lora_rank": 4}',
        "host": "127.0.0.1",
        "port": port,
        "database-url": f"sqlite:///{folder / 'tinker.db'}",
        "checkpoints-base": folder / "checkpoints",
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    log = folder / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [*python, *arguments], cwd=folder, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        deadline = time.monotonic() + STARTS
        while "Starting background engine..." not in log.read_text():
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=30).close()
        service = tinker.ServiceClient(base_url=f"http://127.0.0.1:{port}", api_key="tml-none")
        yield lambda: service.create_lora_training_client(base_model=str(folder / "model"), rank=4, seed=0)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def tensor(values: Any) -> Any:
    return types.TensorData.from_torch(torch.as_tensor(values))


def log_probs(client: Any, data: list[Any]) -> list[torch.Tensor]:
    sent = [types.Datum(model_input=d.model_input, loss_fn_inputs=only_targets(d)) for d in data]
    outputs = client.forward(sent, "cross_entropy").result().loss_fn_outputs
    return [torch.as_tensor(output["logprobs"].data) for output in outputs]


def only_targets(datum: Any) -> dict[str, Any]:
    return {"target_tokens": datum.loss_fn_inputs["target_tokens"]}


@pytest.fixture(scope="module")
def data(make_client):
    """Prompts of two tokens with a response; `weights` are the mask, or SkyRL's means would have prompts in them."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for n in LENGTHS:
        tokens = torch.randint(VOCABULARY, (PROMPT + n,), generator=generator).tolist()
        made.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": tensor(tokens[1:])},
            )
        )
    for datum, now, advantage in zip(made, log_probs(make_client(), made), ADVANTAGES, strict=True):
        mask = (torch.arange(len(now)) >= PROMPT - 1).float()
        noise = 0.3 * torch.randn(len(now), generator=generator)
        inputs = {"logprobs": now - noise, "advantages": torch.full_like(now, advantage), "mask": mask, "weights": mask}
        datum.loss_fn_inputs.update({name: tensor(values) for name, values in inputs.items()})
    return made


def test_its_ppo_is_grpo(make_client, data):
    assert_tinker(make_client, data, "ppo", "grpo", carrier="importance_sampling")


def test_its_cispo_has_the_weights_of_its_clip(make_client, data):
    bounded = method("cispo", aggregation="seq_mean_token_mean", clip={"low": 0.8, "cap": 1.2})
    assert_tinker(make_client, data, "cispo", bounded, carrier="importance_sampling")


def test_another_objective_is_found(make_client, data):
    with pytest.raises(AssertionError, match="the endpoint's 'ppo' is not dapo"):
        assert_tinker(make_client, data, "ppo", "dapo", carrier="importance_sampling")


def test_custom_losses_are_divided_by_the_sum_of_their_weights(make_client, data):
    """SkyRL 0.4.0 divides `cross_entropy` by each datum's sum of weights, at least 1e-9; these sums are of any sign."""
    with pytest.raises(AssertionError, match=r"'cross_entropy' is not a sum of .* A custom loss of the SDK is another"):
        assert_tinker(make_client, data, "ppo", "grpo")


def test_a_step_with_a_custom_loss(make_client, data):
    """One response with a positive advantage: the sum of its weights is positive, so that the direction is right."""
    from tinker import AdamParams

    client, one = make_client(), data[:1]
    before = log_probs(client, one)[0]
    # This SDK takes no inputs but these, so the loss has the data from outside.
    sent = [types.Datum(model_input=d.model_input, loss_fn_inputs=only_targets(d)) for d in one]
    loss = loss_function("gspo")
    result = client.forward_backward_custom(sent, lambda _, rows: loss(one, rows)).result()
    assert result.metrics["policygrain/ratio_max"] != 1
    client.optim_step(AdamParams(learning_rate=1e-3)).result()
    assert float((log_probs(client, one)[0] - before)[PROMPT - 1 :].mean()) > 0
