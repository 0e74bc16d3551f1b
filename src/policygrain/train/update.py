"""One batch of rollouts → log-probabilities, advantages and optimizer steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UserError
from ..methods import Method
from ..model.logprobs import log_probs_and_entropy
from ..model.sequences import Sequences, micro_batches, pack
from ..objective.batch import TokenBatch
from ..objective.loss import merge_metrics
from ..objective.penalty import k3
from ..study.schema import Training
from .rollouts import Rollouts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TrainingBatch:
    """What the updates of one batch read; nothing in it changes while they go on.

    ``sequences`` are the token rectangles, ``tokens`` what the objective needs of them (its ``log_probs`` and
    ``entropy`` being those of the old policy), rows in the order of the rollouts.
    """

    sequences: Sequences
    tokens: TokenBatch

    def rows(self, index: Tensor) -> TrainingBatch:
        """The same, of some rows."""
        sequences = self.sequences.rows(index)
        return TrainingBatch(sequences, self.tokens.rows(index, width=sequences.mask.shape[1]))


def score(model: PreTrainedModel, sequences: Sequences, settings: Training) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [batch, tokens] of all responses, without gradient, 0 on padding."""
    log_probs = torch.zeros(sequences.mask.shape, device=sequences.ids.device)
    entropy = torch.zeros_like(log_probs)
    with torch.no_grad():
        for rows in micro_batches(sequences, settings.micro_batch_tokens):
            part = sequences.rows(rows)
            width = part.mask.shape[1]
            log_probs[rows, :width], entropy[rows, :width] = log_probs_and_entropy(model, part, settings.temperature)
    return log_probs, entropy


def prepare(
    rollouts: Rollouts,
    model: PreTrainedModel,
    reference: PreTrainedModel,
    method: Method,
    settings: Training,
    pad_id: int,
) -> tuple[TrainingBatch, dict[str, float]]:
    """Advantages, old and reference log-probabilities of a batch; and metrics of what was sampled."""
    group = rollouts.rewards.shape[1]
    responses = [r for row in rollouts.responses for r in row]
    sequences = pack(
        [p for p in rollouts.prompts for _ in range(group)], [r.ids for r in responses], pad_id, model.device
    )
    advantages = method.advantages(rollouts.rewards)
    mask = sequences.mask.clone()
    finished = torch.tensor([r.finished for r in responses], device=model.device)
    if method.sampler.mask_truncated:
        mask &= finished.unsqueeze(1)
    old_log_probs, old_entropy = score(model, sequences, settings)
    # For the record alone, a quarter of the batch says enough of how far the policy has gone from its start.
    scored = slice(None) if method.needs_reference else slice(None, None, 4)
    reference_log_probs, _ = score(reference, sequences.rows(scored), settings)
    engine_log_probs = torch.zeros_like(old_log_probs)
    for row, response in enumerate(responses):
        engine_log_probs[row, : len(response.ids)] = torch.tensor(response.log_probs)
    mismatch = torch.where(sequences.mask, old_log_probs - engine_log_probs, 0.0)
    cap = method.sampler.correction_cap
    tokens = TokenBatch(
        log_probs=old_log_probs,
        old_log_probs=old_log_probs,
        advantages=advantages.flatten().to(model.device),
        mask=mask,
        entropy=old_entropy,
        old_entropy=old_entropy,
        ref_log_probs=reference_log_probs if method.needs_reference else None,
        rollout_weights=mismatch.exp().clamp(max=cap) if cap is not None else None,
        max_length=settings.max_tokens,
    )
    lengths = sequences.mask.sum(1).float()
    n = sequences.mask.sum()
    metrics = {
        "reward_mean": rollouts.rewards.mean().item(),
        "reward_std": rollouts.rewards.std().item() if rollouts.rewards.numel() > 1 else 0.0,
        "accuracy": rollouts.correct.mean().item(),
        "advantage_std": advantages.std().item() if advantages.numel() > 1 else 0.0,
        "entropy_old": (torch.where(sequences.mask, old_entropy, 0.0).sum() / n).item(),
        "kl_initial": _mean_kl(old_log_probs[scored], reference_log_probs, sequences.mask[scored]),
        "response_length_mean": lengths.mean().item(),
        "response_length_max": lengths.max().item(),
        "truncated_share": 1 - finished.float().mean().item(),
        "groups_drawn": rollouts.drawn,
        "groups_dropped": rollouts.dropped,
        "mismatch_mean": (mismatch.abs().sum() / n).item(),
        "mismatch_max": mismatch.abs().max().item(),
        "mismatch_kl": (torch.where(sequences.mask, k3(engine_log_probs, old_log_probs), 0.0).sum() / n).item(),
    }
    return TrainingBatch(sequences, tokens), metrics


def _mean_kl(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> float:
    width = reference_log_probs.shape[1]
    estimate = torch.where(mask[:, :width], k3(log_probs[:, :width], reference_log_probs), 0.0)
    return float(estimate.sum() / mask.sum().clamp(min=1))


def minibatches(prompts: int, group: int, count: int, seed: int) -> list[Tensor]:
    """Row indices of ``count`` optimizer steps: prompts are shuffled, their responses cut evenly; none is empty.

    A prompt's responses stay together where the cut allows: they share its tokens, and their advantages sum to zero.
    """
    order = torch.randperm(prompts, generator=torch.Generator().manual_seed(seed))
    rows = (order.unsqueeze(1) * group + torch.arange(group)).flatten()
    return list(rows.tensor_split(min(count, len(rows))))


def update(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: TrainingBatch, method: Method, settings: Training
) -> dict[str, float]:
    """One optimizer step on ``batch``; returns its metrics. Cutting it into micro-batches changes nothing."""
    optimizer.zero_grad(set_to_none=True)
    whole = _whole_step(model, batch, method, settings)
    parts = []
    for rows in micro_batches(batch.sequences, settings.micro_batch_tokens):
        part = batch.rows(rows)
        log_probs, entropy = log_probs_and_entropy(
            model, part.sequences, settings.temperature, method.entropy_has_gradient
        )
        out = method.loss(part.tokens.replace(log_probs=log_probs, entropy=entropy, step=whole))
        out.loss.backward()
        parts.append(out.metrics)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm).item()
    metrics = merge_metrics(parts) | {"gradient_norm": norm, "learning_rate": optimizer.param_groups[0]["lr"]}
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient is not finite (loss {metrics['loss']}, largest ratio {metrics['ratio_max']:.3g})."
        )
    optimizer.step()
    return metrics


def _whole_step(model: PreTrainedModel, batch: TrainingBatch, method: Method, settings: Training) -> TokenBatch:
    """The step that micro-batches are normalised by; with current log-probabilities where a part reads them."""
    tokens = batch.tokens
    if method.reads_whole_step:
        tokens = tokens.replace(log_probs=score(model, batch.sequences, settings)[0])
    return tokens.replace(step=None)
