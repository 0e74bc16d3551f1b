"""The work of gpu.py: shapes, texts, and models with random weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from policygrain.commands.plan import constants, parameters
from policygrain.study.schema import Training
from policygrain.train.start_model import character_tokenizer


class Work(NamedTuple):
    """A step. Responses have ``tokens`` tokens; ``natural``: half of them on average, with geometric lengths."""

    prompts: int
    prompt_tokens: int
    group: int
    tokens: int
    natural: bool = False
    updates: int = 4

    def settings(self, device: str, engine: Any, steps: int, checkpoint_every: int = 1000) -> Training:
        return Training(
            steps=steps,
            prompts_per_step=self.prompts,
            group=self.group,
            updates_per_batch=self.updates,
            max_tokens=self.tokens,
            # An update is one forward pass.
            micro_batch_tokens=self.prompts // self.updates * (self.prompt_tokens + self.group * self.tokens),
            learning_rate=1e-6,
            compute="bfloat16" if device == "cuda" else "float32",
            engine=engine,
            validate_every=1000,
            checkpoint_every=checkpoint_every,
        )


# Keys of config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "1.5b": constants()["models"]["Qwen/Qwen2.5-1.5B"],
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
    },
}
FULL = {
    "equal": Work(32, 64, 8, 256),
    "natural": Work(32, 64, 8, 1024, natural=True),
    "long prompts": Work(32, 512, 8, 256),
}
SMALL = {
    "equal": Work(4, 8, 4, 16),
    "natural": Work(4, 8, 4, 32, natural=True),
    "long prompts": Work(4, 24, 4, 16),
}
PEAK_TFLOPS = {"H100": 989, "H200": 989, "A100": 312, "L40S": 362, "B200": 2250}  # dense bfloat16, data sheets


def work_of(shape: str, kind: str) -> Work:
    return (SMALL if shape == "tiny" else FULL)[kind]


def texts(work: Work, steps: int) -> list[str]:
    """A prompt for each of the steps' groups: digits, a token each."""
    draw = random.Random(0)
    return ["".join(draw.choices("0123456789", k=work.prompt_tokens)) for _ in range(steps * work.prompts)]


def start_folder(folder: Path, shape: str, work: Work) -> str:
    """A model with random weights and a tokenizer of characters, made if it is not there."""
    path = folder / f"{shape}{'-natural' * work.natural}"
    if (path / "config.json").exists():
        return str(path)
    sizes, tokenizer = SHAPES[shape], character_tokenizer()
    config = Qwen2Config(
        **sizes,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config).bfloat16()
    if work.natural:
        # Random weights give all tokens about the same probability: with k ends lengths are geometric with mean V / k.
        count = 2 * sizes["vocab_size"] // work.tokens
        ends = random.Random(0).sample(range(100, sizes["vocab_size"]), count)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *ends]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def published_case(device: str) -> tuple[Qwen3ForCausalLM, int]:
    """The model and the tokens of a row of prime-rl's published case: Qwen3-0.6B, 16,384 tokens."""
    sizes = (1024, 3072, 28, 16, 8, 128, 151936) if device == "cuda" else (64, 128, 2, 2, 1, 32, 8192)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    shape: dict[str, Any] = dict(zip((*names, "head_dim", "vocab_size"), sizes, strict=True))
    config = Qwen3Config(**shape, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen3ForCausalLM(config), 16384 if device == "cuda" else 256


def needed_flops(shape: dict[str, Any], work: Work) -> float:
    """Of a forward pass over a step's texts, each prompt once; prompts need no logits.

    2N per token (Kaplan et al., arXiv 2001.08361), and causal attention, 4 · layers · query width per token and token
    of context (Narayanan et al., arXiv 2104.04473): half of the own text on average, for responses the whole prompt.
    """
    prompts, responses = work.prompts * work.prompt_tokens, work.prompts * work.group * work.tokens
    context = prompts * work.prompt_tokens / 2 + responses * (work.prompt_tokens + work.tokens / 2)
    hidden, multiplied = shape["hidden_size"], parameters({**shape, "tie_word_embeddings": True})
    weights = 2.0 * multiplied * (prompts + responses) - 2.0 * prompts * hidden * shape["vocab_size"]
    return weights + 4.0 * shape["num_hidden_layers"] * hidden * context
