"""Multi-token prediction heads."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.model.logprobs import score_tokens
from policygrain.model.mtp_heads import MTPHeads
from policygrain.model.sequences import pack

from ..support.engines import random_token_ids


def test_prediction_heads_foresee_what_a_plain_pass_says() -> None:
    """Head n at the hidden state that predicts token t, scored on token t+n; the heads' loss trains the heads alone."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=2, initializer_range=0.3, **sizes))
    heads = MTPHeads(16, count=3)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prompts, responses = random_token_ids(6, 8, 9)
    sequences = pack(prompts, responses, 0)
    scores = score_tokens(model, sequences, 0.7, heads=heads)
    assert scores.future is not None and scores.future_loss is not None
    loss = 0.0
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        states = model.model(torch.tensor([prompt + response])).last_hidden_state[0, len(prompt) - 1 : -1]
        for t, state in enumerate(states):
            logits = [model.lm_head(state + head(state)) for head in heads.heads]
            ahead = [(x, response[t + n]) for n, x in enumerate(logits, start=1) if t + n < len(response)]
            expected = sum(float((x / 0.7).log_softmax(-1)[token]) for x, token in ahead)
            assert float(scores.future[row, t]) == pytest.approx(expected, abs=1e-4)
            loss -= sum(float(x.log_softmax(-1)[token]) for x, token in ahead)
    assert float(scores.future_loss) == pytest.approx(loss, rel=1e-4)
    scores.future_loss.backward()
    assert all(p.grad is not None for p in heads.parameters())
    assert all(p.grad is None for p in model.parameters())
