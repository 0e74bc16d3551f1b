"""The work of gpu.py: shapes, texts, and models with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.clock import Clock
from policygrain.plan.cost import constants
from policygrain.plan.shapes import Shape
from policygrain.study.schema import Training


class Work(NamedTuple):
    prompts: int
    prompt_tokens: int
    group: int
    tokens: int
    updates: int = 4

    @property
    def settings(self) -> Training:
        return Training(
            prompts_per_step=self.prompts,
            group=self.group,
            updates_per_batch=self.updates,
            max_tokens=self.tokens,
            # An update is one forward pass.
            micro_batch_tokens=self.prompts // self.updates * (self.prompt_tokens + self.group * self.tokens),
            learning_rate=1e-6,
        )


SHAPES = {
    "0.5b": Shape(**constants()["shapes"]["Qwen/Qwen2.5-0.5B"]),
    "1.5b": Shape(**constants()["shapes"]["Qwen/Qwen2.5-1.5B"]),
    "tiny": Shape(64, 128, 2, 2, 1, 8192, tied=True),
}
FULL, SMALL = Work(32, 64, 8, 256), Work(4, 8, 4, 16)
PEAK_TFLOPS = {"H100": 989, "H200": 989, "A100": 312, "L40S": 362, "B200": 2250}  # dense bfloat16, data sheets
STEPS = 2  # counted ones


def work_of(shape: str) -> Work:
    return SMALL if shape == "tiny" else FULL


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def model_of(shape: str, device: str) -> Qwen2ForCausalLM:
    sizes = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        vocab_size=sizes.vocabulary,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=sizes.tied,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    return model.bfloat16() if device == "cuda" else model.float()


def needed_flops(shape: Shape, work: Work) -> float:
    """Of a forward pass over a step's texts, each prompt once; prompts need no logits.

    2N per token (Kaplan et al., arXiv 2001.08361), and causal attention, 4 · layers · query width per token and token
    of context (Narayanan et al., arXiv 2104.04473): half of the own text on average, for responses the whole prompt.
    """
    prompts, responses = work.prompts * work.prompt_tokens, work.prompts * work.group * work.tokens
    context = prompts * work.prompt_tokens / 2 + responses * (work.prompt_tokens + work.tokens / 2)
    weights = 2.0 * shape.multiplied * (prompts + responses) - 2.0 * prompts * shape.hidden * shape.vocabulary
    return weights + 4.0 * shape.layers * shape.queries * context


class Timed(Clock):
    """Waits for the GPU at the end of each phase, and looks how much of its memory is taken then."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.taken = device, 0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        with super().__call__(phase):
            yield
            synchronise(self.device)
        if self.device == "cuda":
            # Of the whole device: an engine that sleeps has given back what torch still counts as its own.
            free, total = torch.cuda.mem_get_info()
            self.taken = max(self.taken, total - free)
