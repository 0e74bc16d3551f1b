"""Optimizer steps on a batch of rollouts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..errors import UserError
from ..model.logprobs import score_tokens
from ..model.sequences import micro_batches
from ..objective import Method
from ..objective.batch import StepTotals
from ..objective.loss import merge_metrics
from ..provenance import seed_of
from ..study.schema import Training
from .policy import Policy, ScoredPolicy
from .rollout_batch import TrainingBatch


def minibatches(prompts: int, group: int, count: int, seed: int, epochs: int = 1) -> list[Tensor]:
    """Row indices of each optimizer step: ``count`` in each of ``epochs`` passes over a batch; none is empty.

    In each pass prompts are shuffled anew and responses split evenly. Responses of a prompt stay together where
    possible: they share its tokens, and their advantages sum to zero.
    """
    generator = torch.Generator().manual_seed(seed)
    steps: list[Tensor] = []
    for _ in range(epochs):
        order = torch.randperm(prompts, generator=generator)
        rows = (order.unsqueeze(1) * group + torch.arange(group)).flatten()
        steps += rows.tensor_split(min(count, len(rows)))
    return steps


def minibatches_of_step(settings: Training, prompts: int, group: int, seed: int, step: int) -> list[Tensor]:
    """The minibatches of a step of a run with this seed: the same for all methods and trainers."""
    return minibatches(prompts, group, settings.updates_per_batch, seed_of("minibatches", seed, step), settings.epochs)


@contextmanager
def fixed_order() -> Iterator[None]:
    """Context in which a GPU sums gradients in a fixed order, so that a resumed run is the same bit for bit."""
    if not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a pass over every new tensor
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def update(policy: Policy, batch: TrainingBatch, method: Method, settings: Training) -> dict[str, float]:
    """One optimizer step on ``batch``; returns its metrics.

    UserError, and no step, if the gradient is not finite. The result is the same for all divisions into micro-batches.
    """
    model, heads, optimizer, scaler = policy.model, policy.heads, policy.optimizer, policy.scaler
    optimizer.zero_grad(set_to_none=True)
    whole = step_context(policy, batch, method, settings)
    entropy_gradient = "entropy_gradient" in method.needs
    outputs, future_losses = [], []
    for rows in micro_batches(batch.sequences, settings.micro_batch_tokens):
        part = batch.rows(rows)
        scores = score_tokens(model, part.sequences, settings.temperature, entropy_gradient, heads)
        now = {"log_probs": scores.log_probs, "entropy": scores.entropy, "future_log_probs": scores.future}
        out = method.loss(part.tokens.replace(**now, step=whole))
        loss = out.loss
        if scores.future_loss is not None:
            # The heads are trained further, because the policy that they predict changes.
            future_loss = scores.future_loss / whole.n_tokens
            loss = loss + method.mtp_heads.loss_weight * future_loss
            future_losses.append(future_loss.detach())
        with fixed_order():
            scaler.scale(loss).backward()
        outputs.append(out)
    scaler.unscale_(optimizer)
    if heads is not None:
        torch.nn.utils.clip_grad_norm_(heads.parameters(), settings.max_grad_norm)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm).item()
    # Metrics are read here, when all passes have been started.
    metrics = merge_metrics([out.metrics for out in outputs])
    if future_losses:
        metrics["future_loss"] = sum(x.item() for x in future_losses)
    metrics |= {"gradient_norm": norm, "learning_rate": optimizer.param_groups[0]["lr"]}
    # In float16 a gradient may overflow: the scaler then skips the step and scales the next loss by less.
    check_step(metrics, may_overflow=scaler.get_scale() > 1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)  # frees memory for a colocated engine
    return metrics


def check_step(metrics: dict[str, float], may_overflow: bool = False) -> None:
    """UserError if the gradient of a step is not finite, except for an overflow that the scaler handles."""
    if not math.isfinite(metrics["gradient_norm"]) and not may_overflow:
        values = f"(loss {metrics['loss']}, largest ratio {metrics['ratio_max']:.3g})"
        raise UserError(f"the gradient is not finite {values}.")


def step_context(policy: ScoredPolicy, batch: TrainingBatch, method: Method, settings: Training) -> StepTotals:
    """Step context used to normalise micro-batches, with current log-probabilities if the method needs them."""
    step = batch.tokens.replace(step=None)
    if "step_log_probs" in method.needs:
        now = policy.score(batch.sequences, settings)
        step = step.replace(log_probs=now.log_probs, entropy=now.entropy, future_log_probs=now.future)
    return method.step_of(step)
