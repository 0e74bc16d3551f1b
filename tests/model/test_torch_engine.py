"""The transformers engine samples from the distribution that the trainer scores, independently of the batch."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from policygrain.model.engine import Request
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import SmallDecoder, TorchEngine

from ..support.device import PLACE
from ..support.engines import random_rollouts, requests_of, score_responses, torch_engine


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_trainer_scores_what_was_sampled(start, temperature):
    # Every other response may have one token alone, so that it is cut off unless it ends at once.
    requests = [
        replace(request, max_tokens=1 if i % 2 else 4) for i, request in enumerate(requests_of(start, temperature))
    ]
    responses = torch_engine(start).generate(requests)
    trainer, engine, mask = score_responses(start, responses, temperature)
    assert (trainer - engine)[mask].abs().max() < 1e-4
    assert {r.finished for r in responses} == {True, False}, "both kinds should occur"
    for request, response in zip(requests, responses, strict=True):
        assert len(response.ids) == request.max_tokens or (response.finished and len(response.ids) < request.max_tokens)


def test_a_response_does_not_depend_on_its_batch(start):
    requests = requests_of(start)
    together = torch_engine(start).generate(requests)
    assert [r.ids for r in torch_engine(start, batch_size=4).generate(requests)] == [r.ids for r in together]
    backwards = torch_engine(start).generate(requests[::-1])[::-1]
    assert [r.ids for r in backwards] == [r.ids for r in together]
    assert len({tuple(r.ids) for r in together[:3]}) > 1, "seeds differ, so should samples"


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_sampling_follows_the_distribution_and_greedy_takes_its_largest(start, top_p):
    """First tokens of 4,000 samples of one prompt against the model's own probabilities, within the nucleus."""
    prompt, (model, _) = requests_of(start)[0].prompt_ids, load_model(str(start))
    with torch.no_grad():
        p = model(torch.tensor([prompt], device=PLACE)).logits[0, -1].softmax(-1)
    greedy = torch_engine(start).generate([Request(prompt, 1, 4, temperature=0.0)] * 2)
    assert greedy[0].ids == greedy[1].ids and greedy[0].ids[0] == int(p.argmax())
    ranked, index = p.sort(descending=True)
    p[index[int((ranked.cumsum(0) < top_p).sum()) + 1 :]] = 0.0
    p = p / p.sum()
    responses = torch_engine(start, 4000).generate([Request(prompt, seed, 1, top_p=top_p) for seed in range(4000)])
    counts = torch.bincount(torch.tensor([r.ids[0] for r in responses]), minlength=len(p)).float().to(PLACE)
    error = (counts / 4000 - p).abs()
    assert bool((error < 5 * (p * (1 - p) / 4000).sqrt() + 1e-3).all()) and not counts[p == 0].any()


def test_a_response_ends_at_every_end_token_of_the_models_configuration(start):
    """As in vLLM: chat models have an end of the turn, which is the tokenizer's, and one of the text."""
    engine = torch_engine(start)
    plain = engine.generate(requests := requests_of(start))
    other = Counter(token for response in plain for token in response.ids[:-1]).most_common(1)[0][0]
    engine.model.generation_config.eos_token_id = [engine.eos_id, other]
    engine.load_weights(engine.model)
    for one, both in zip(plain, engine.generate(requests), strict=True):
        end = one.ids.index(other) + 1 if other in one.ids else len(one.ids)
        assert both.ids == one.ids[:end] and both.finished == (one.finished or other in one.ids)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_small_decoder_equals_transformers(kv_heads, monkeypatch):
    """The same tokens and log-probabilities, with grouped heads and without."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=kv_heads, initializer_range=0.2, **sizes))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and norms are 0 and 1 in a new model, so an error in them would not show
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    engine = TorchEngine(model, eos_id=1, pad_id=0)
    requests = [Request(rollout.prompt, seed, 30) for seed, rollout in enumerate(random_rollouts(40, 20, 1))]
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
