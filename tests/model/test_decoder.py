"""The decoder for small models computes what transformers computes."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from policygrain.model.decoder import SmallDecoder
from policygrain.model.engine import Request
from policygrain.model.torch_engine import TorchEngine

from ..support.engines import random_token_ids


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_small_decoder_equals_transformers(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens and log-probabilities, with grouped heads and without."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=kv_heads, initializer_range=0.2, **sizes))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and norms are 0 and 1 in a new model, so an error in them would not show
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    engine = TorchEngine(model, eos_id=1, pad_id=0)
    requests = [Request(prompt, seed, 30) for seed, prompt in enumerate(random_token_ids(40, 20, 1)[0])]
    assert SmallDecoder.fits(model)
    assert not SmallDecoder.fits(LlamaForCausalLM(LlamaConfig(vocab_size=40, attention_bias=True, **sizes)))
    assert not SmallDecoder.fits(LlamaForCausalLM(LlamaConfig(vocab_size=40, mlp_bias=True, **sizes)))
    fast = engine.generate(requests)
    monkeypatch.setattr(SmallDecoder, "fits", lambda model: False)
    plain = engine.generate(requests)
    assert [r.ids for r in fast] == [r.ids for r in plain]
    assert len({len(r.ids) for r in plain}) > 3, "rows should end at different times"
    for a, b in zip(fast, plain, strict=True):
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
