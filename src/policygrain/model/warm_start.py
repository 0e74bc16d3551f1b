"""Warm start: supervised fine-tuning of a tiny model, from random weights, on noisy demonstrations.

Training stops at a medium accuracy on purpose: the model mostly answers directly, which rarely succeeds, and sometimes
writes out its steps, which often does. Reinforcement learning can then improve on the model's greedy decoding.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch

from ..progress import Progress
from ..tasks.families import demonstrations
from .logprobs import score_tokens
from .muon import Muon
from .sequences import Sequences, micro_batches, pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study.schema import WarmStart
    from ..tasks.prompts import PromptRenderer


# About the size at which a small model is fastest on one core.
MICRO_BATCH_TOKENS = 2048


def finetune(
    model: PreTrainedModel, renderer: PromptRenderer, families: list[str], spec: WarmStart, seed: int
) -> list[dict[str, float]]:
    """Supervised fine-tuning of ``model`` in place; returns the loss of each step in nats per response token."""
    tokenizer = renderer.tokenizer
    with_steps = demonstrations(families, f"{seed}/scratchpad", spec.error_rate, direct_share=0.0)
    mixed = demonstrations(families, f"{seed}/mixed", spec.error_rate, spec.direct_share)
    optimizers = _optimizers(model, spec.learning_rate)
    history = []
    progress = Progress(range(spec.steps), f"initial model, seed {seed}", spec.steps)
    for step in progress:
        # Worked steps first, which take long to learn; direct answers are learnt in the last few steps.
        examples = mixed if step >= spec.steps - spec.mixed_steps else with_steps
        sources, prompts, responses = zip(*itertools.islice(examples, spec.batch_size), strict=True)
        ids, masks = zip(*map(renderer.response, sources, responses), strict=True)
        sequences = pack(
            [renderer.ids(p) for p in prompts],
            [[*response, tokenizer.eos_token_id] for response in ids],
            tokenizer.pad_token_id,
            model.device,
            masks,
        )
        # Linear warm-up over the first twentieth of the steps, then cosine decay to a quarter of the learning rate.
        scale = min((step + 1) / max(1, spec.steps // 20), max(0.25, 0.5 + 0.5 * math.cos(math.pi * step / spec.steps)))
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
        loss = sum(_backward(model, sequences, rows) for rows in micro_batches(sequences, MICRO_BATCH_TOKENS))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        history.append({"step": step, "loss": loss})
        progress.note = f"loss {loss:.3f}"
    return history


def _optimizers(model: PreTrainedModel, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, which needs half as many steps as AdamW here; AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=5 * learning_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98)),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _backward(model: PreTrainedModel, sequences: Sequences, rows: torch.Tensor) -> float:
    """Backpropagate a micro-batch's share of the mean loss over the step's response tokens; returns that share."""
    part = sequences.rows(rows)
    log_probs = score_tokens(model, part, temperature=1.0, entropy_gradient=False).log_probs
    loss = -(log_probs * part.mask).sum() / sequences.mask.sum()
    loss.backward()
    return loss.item()
