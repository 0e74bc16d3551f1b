"""A small engine, requests to it, scores of its responses; tiny models and token ids at random."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.data.families import generate
from policygrain.model.engine import Request, Rollout
from policygrain.model.loading import load_model
from policygrain.model.scoring import score_tokens
from policygrain.model.torch_engine import TorchEngine
from policygrain.study.schema import TinyModel
from policygrain.train.start_model import character_tokenizer, tiny_model

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


def save_tiny(folder: Path, tokenizer: Any = None, scale: float = 1.0, **sizes: int) -> str:
    """A tiny model with random weights, embeddings times ``scale``, and its tokenizer, by default of characters."""
    tokenizer = tokenizer or character_tokenizer()
    model = tiny_model(TinyModel(**{"hidden": 32, "intermediate": 64, "layers": 1, "heads": 1} | sizes), tokenizer, 0)
    with torch.no_grad():
        model.unembedding.mul_(scale)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def torch_engine(start: Path, batch_size: int = 256) -> TorchEngine:
    """The transformers engine with the model in ``start``."""
    model, tokenizer = load_model(str(start))
    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id, batch_size)


def requests_of(start: Path, temperature: float = 1.0, top_p: float = 1.0, max_tokens: int = 12) -> list[Request]:
    """Requests for three samples of each of 15 prompts of different lengths."""
    _, tokenizer = load_model(str(start))
    problems = generate("count", "test", 12, seed=5) + generate("clock", "test", 3, seed=5)
    return [
        Request(tokenizer(p.problem + "\n")["input_ids"], 100 * i + j, max_tokens, temperature, top_p)
        for i, p in enumerate(problems)
        for j in range(3)
    ]


def score_responses(start: Path, rollouts: list[Rollout], temperature: float) -> tuple[torch.Tensor, ...]:
    """Log-probabilities by the trainer's forward pass and by the engine, and the mask; all [rollouts, tokens]."""
    with torch.no_grad():
        trainer = score_tokens(load_model(str(start))[0], rollouts, temperature).log_probs.cpu()
    engine, mask = torch.zeros_like(trainer), torch.zeros_like(trainer, dtype=torch.bool)
    for row, rollout in enumerate(rollouts):
        engine[row, : len(rollout.ids)] = torch.tensor(rollout.log_probs)
        mask[row, : len(rollout.ids)] = True
    return trainer, engine, mask


def random_rollouts(rows: int, longest_prompt: int, longest: int, share: int = 3) -> list[Rollout]:
    """Rollouts of random token ids; ``share`` consecutive ones have the same prompt."""
    generator = torch.Generator().manual_seed(0)

    def sample(lengths: torch.Tensor) -> list[list[int]]:
        return [torch.randint(3, 40, (int(n),), generator=generator).tolist() for n in lengths]

    prompts = sample(torch.randint(1, longest_prompt + 1, (rows // share + 1,), generator=generator))
    responses = sample(torch.randint(1, longest + 1, (rows,), generator=generator))
    return [Rollout(prompts[row // share], ids, True, []) for row, ids in enumerate(responses)]
