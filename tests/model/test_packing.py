"""A packed forward pass equals a forward pass per response."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.model.logprobs import score_tokens
from policygrain.model.packing import recompute_contexts
from policygrain.model.sequences import pack

from ..support.engines import random_token_ids


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["all heads", "grouped heads"])
def test_a_packed_pass_equals_one_pass_per_response(heads: tuple[int, int]) -> None:
    """Log-probabilities, entropies and gradients of the packed pass against plain forward passes, one per response."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        initializer_range=0.3,
    )
    model = Qwen2ForCausalLM(config)
    prompts, responses = random_token_ids(14, 20, 50)
    responses[3] = responses[3][:1]  # a single token is predicted but never an input
    sequences = pack(prompts, responses, 0)
    log_probs, entropy = score_tokens(model, sequences, temperature=0.7)[:2]
    (log_probs + 0.1 * entropy).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        log_p = (model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        chosen, h = log_p.gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(1)
        assert torch.allclose(log_probs[row, : len(response)], chosen, atol=1e-4)
        assert torch.allclose(entropy[row, : len(response)], h, atol=1e-4)
        assert not log_probs[row, len(response) :].any()
        (chosen + 0.1 * h).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert (gradient - plain).norm() < 1e-5 * plain.norm()


def test_recomputed_activations_give_the_same_gradient() -> None:
    """Checkpointed layers are recomputed in the backward pass, after the packed forward pass has returned."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=1, **sizes)).train()
    prompts = [[5, 6, 7], [5, 6, 7], [8, 9]]
    sequences = pack(prompts, [[1, 2, 3, 4], [4, 3], [2, 1, 2]], 0)

    def gradient() -> Tensor:
        model.zero_grad()
        score_tokens(model, sequences, 0.7).log_probs.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    kept = gradient()
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": partial(recompute_contexts, model)})
    assert torch.equal(gradient(), kept)
