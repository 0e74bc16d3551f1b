"""Log-probabilities, advantages and optimizer steps of one batch of rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from ..model.device import device
from ..model.logprobs import TokenScores, score_tokens
from ..model.sequences import Sequences, micro_batches, pack, segment_ids
from ..objective import Method
from ..objective.batch import StepTotals, TokenBatch
from ..objective.correction import effective_sample_share, log_weights, rollout_weights
from ..objective.divergence import k3
from ..objective.loss import merge_metrics
from ..objective.part import Custom
from ..provenance import seed_of
from ..study.schema import Training
from .credit import advantages_of
from .policy import Policy, ScoredPolicy
from .rollouts import Rollouts

# The largest mean difference, in nats per token, at which the engine's log-probabilities replace the trainer's.
AGREEMENT = 1e-4


@dataclass(frozen=True)
class TrainingBatch:
    """The inputs of the updates of one batch, which do not change during the updates.

    ``sequences`` are the padded token ids, ``tokens`` the inputs of the objective, with ``log_probs`` and ``entropy``
    of the old policy. Rows are in the order of the rollouts. ``scored_entropy`` are entropies of the old policy of the
    first rows, as many as were scored.
    """

    sequences: Sequences
    tokens: TokenBatch
    scored_entropy: Tensor | None = None

    def rows(self, index: Tensor) -> TrainingBatch:
        """The rows ``index`` of the batch."""
        sequences = self.sequences.rows(index)
        return TrainingBatch(sequences, self.tokens.rows(index, width=sequences.mask.shape[1]))


def prepare(
    rollouts: Rollouts, policy: ScoredPolicy, method: Method, settings: Training, age: int | None = None
) -> tuple[TrainingBatch, dict[str, float]]:
    """Advantages, old and reference log-probabilities of a batch, and metrics of its responses.

    ``age``: steps from sampling to the updates, if methods may read it.
    """
    group = rollouts.rewards.shape[1]
    responses = [r for row in rollouts.responses for r in row]
    prompts = [p for p in rollouts.prompts for _ in range(group)]
    pad, masks = policy.tokenizer.pad_token_id, [r.mask for r in responses]
    sequences = pack(prompts, [r.ids for r in responses], pad, device(), masks)
    advantages = advantages_of(method, rollouts.rewards, sequences)
    needs = method.needs
    groups = torch.arange(len(rollouts.prompts), device=device()).repeat_interleave(group)
    mask = sequences.mask.clone()
    finished = torch.tensor([r.finished for r in responses], device=device())
    if method.sampler.mask_truncated:
        mask &= finished.unsqueeze(1)
    engine_log_probs = torch.zeros(sequences.mask.shape, device=sequences.ids.device)
    for row, response in enumerate(responses):
        engine_log_probs[row, : len(response.ids)] = torch.tensor(response.log_probs)
    # If the engine's log-probabilities agree with the trainer's on some groups, and nothing else of the old policy is
    # needed, they are used for all groups, and the other groups are not scored.
    some = slice(0, math.ceil(len(rollouts.prompts) / 4) * group)
    scored = some if settings.old_log_probs == "engine" and _needs_log_probs_alone(method) else slice(None)
    old = _score_rows(policy, sequences, settings, scored)
    mismatch = torch.where(sequences.mask[scored], old.log_probs - engine_log_probs[scored], 0.0)
    if scored == some and float(mismatch.abs().sum() / sequences.mask[scored].sum()) > AGREEMENT:
        scored, old = slice(None), _score_rows(policy, sequences, settings, slice(None))
        mismatch = torch.where(sequences.mask, old.log_probs - engine_log_probs, 0.0)
    is_whole = scored == slice(None)
    old_log_probs = old.log_probs if is_whole else torch.where(sequences.mask, engine_log_probs, 0.0)
    # If only the metric `kl_initial` needs the reference policy, a quarter of the batch is enough.
    compared = slice(None) if "reference" in needs else some
    reference = policy.score_reference(sequences.rows(compared), settings)
    weights = _correction(method, old_log_probs, engine_log_probs, mask)
    tokens = TokenBatch(
        log_probs=old_log_probs,
        old_log_probs=old_log_probs,
        advantages=advantages,
        mask=mask,
        entropy=old.entropy if is_whole else None,
        old_entropy=old.entropy if is_whole else None,
        ref_log_probs=reference.log_probs if reference is not None and "reference" in needs else None,
        rollout_weights=weights,
        future_log_probs=old.future,
        old_future_log_probs=old.future,
        groups=groups if "groups" in needs else None,
        segments=segment_ids(sequences, policy.tokenizer, settings.segment_ends) if "segments" in needs else None,
        rollout_log_probs=engine_log_probs,
        staleness=torch.full((len(mask),), age, device=device()) if age is not None and "staleness" in needs else None,
        max_length=settings.max_tokens,
    )
    kl_initial = {}
    if reference is not None:
        kl_initial["kl_initial"] = _mean_kl(old_log_probs[compared], reference.log_probs, sequences.mask[compared])
    lengths = sequences.mask.sum(1).float()
    spread = advantages if advantages.ndim == 1 else advantages[sequences.mask]
    n = sequences.mask[scored].sum()
    metrics = {
        "reward_mean": rollouts.rewards.mean().item(),
        "reward_std": rollouts.rewards.std().item() if rollouts.rewards.numel() > 1 else 0.0,
        "accuracy": rollouts.correct.mean().item(),
        "advantage_std": spread.std().item() if spread.numel() > 1 else 0.0,
        "entropy_old": (torch.where(sequences.mask[scored], old.entropy, 0.0).sum() / n).item(),
        **kl_initial,
        "response_length_mean": lengths.mean().item(),
        "response_length_max": lengths.max().item(),
        "truncated_share": 1 - finished.float().mean().item(),
        "groups_drawn": rollouts.sampled,
        "groups_dropped": rollouts.dropped,
        "mismatch_mean": (mismatch.abs().sum() / n).item(),
        "mismatch_max": mismatch.abs().max().item(),
        "mismatch_kl": (
            torch.where(sequences.mask[scored], k3(engine_log_probs[scored], old.log_probs), 0.0).sum() / n
        ).item(),
    }
    if weights is not None:
        before = (
            log_weights(old_log_probs, engine_log_probs, mask, method.sampler.correction_grain)[mask].double().exp()
        )
        metrics["correction_weight_mean"] = before.mean().item() if len(before) else 1.0
        metrics["correction_weight_max"] = before.max().item() if len(before) else 1.0
        metrics["correction_effective_share"] = effective_sample_share(weights, mask)
        metrics["correction_dropped_share"] = ((weights == 0) & mask).sum().item() / max(1, int(mask.sum()))
    return TrainingBatch(sequences, tokens, old.entropy), metrics


def _correction(method: Method, old_log_probs: Tensor, engine_log_probs: Tensor, mask: Tensor) -> Tensor | None:
    """Importance weights between engine and trainer, if the method asks for them. [batch, tokens]."""
    if not method.sampler.corrects or method.anchor == "loglinear":  # whose weights change with each update
        return None
    return rollout_weights(old_log_probs, engine_log_probs, mask, method.sampler)


def _needs_log_probs_alone(method: Method) -> bool:
    """Whether a method reads only log-probabilities of the old policy: no entropies, no prediction heads."""
    has_custom = any(isinstance(part, Custom) for part in method.parts().values())  # may read anything
    return not (has_custom or method.penalties or method.n_mtp_heads or method.sampler.corrects)


def _score_rows(policy: ScoredPolicy, sequences: Sequences, settings: Training, rows: slice) -> TokenScores:
    """Scores of some rows under the policy, as wide as all rows. [rows, tokens]."""
    scores = policy.score(sequences.rows(rows), settings)
    width = sequences.mask.shape[1] - scores.log_probs.shape[1]

    def widened(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, width))

    future = None if scores.future is None else widened(scores.future)
    return TokenScores(widened(scores.log_probs), widened(scores.entropy), future, None)


def _mean_kl(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> float:
    width = reference_log_probs.shape[1]
    estimate = torch.where(mask[:, :width], k3(log_probs[:, :width], reference_log_probs), 0.0)
    return float(estimate.sum() / mask.sum().clamp(min=1))


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
    """The minibatches of a step of a run with this sampling seed: the same for all methods and trainers."""
    return minibatches(prompts, group, settings.updates_per_batch, seed_of("minibatches", seed, step), settings.epochs)


def update(policy: Policy, batch: TrainingBatch, method: Method, settings: Training) -> dict[str, float]:
    """One optimizer step on ``batch``; returns its metrics.

    UserError, and no step, if the gradient is not finite. The result is the same for all divisions into micro-batches.
    """
    model, heads, optimizer, scaler = policy.model, policy.heads, policy.optimizer, policy.scaler
    optimizer.zero_grad(set_to_none=True)
    whole = step_context(policy, batch, method, settings)
    entropy_gradient = "entropy_gradient" in method.needs
    parts = []
    for rows in micro_batches(batch.sequences, settings.micro_batch_tokens):
        part = batch.rows(rows)
        scores = score_tokens(model, part.sequences, settings.temperature, entropy_gradient, heads)
        now = {"log_probs": scores.log_probs, "entropy": scores.entropy, "future_log_probs": scores.future}
        out = method.loss(part.tokens.replace(**now, step=whole))
        loss, metrics = out.loss, out.metrics
        if scores.future_loss is not None:
            # The heads are trained further, because the policy that they predict changes.
            future_loss = scores.future_loss / whole.n_tokens
            loss = loss + method.mtp_heads.loss_weight * future_loss
            metrics = metrics | {"future_loss": future_loss.item()}
        scaler.scale(loss).backward()
        parts.append(metrics)
    scaler.unscale_(optimizer)
    if heads is not None:
        torch.nn.utils.clip_grad_norm_(heads.parameters(), settings.max_grad_norm)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm).item()
    metrics = merge_metrics(parts) | {"gradient_norm": norm, "learning_rate": optimizer.param_groups[0]["lr"]}
    # In float16 a gradient may overflow: the scaler then skips the step and scales the next loss by less.
    check_step(metrics, may_overflow=scaler.get_scale() > 1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)  # frees memory for a colocated engine
    return metrics


def check_step(metrics: dict[str, float], may_overflow: bool = False) -> None:
    """UserError if a step with these metrics must not be made because its gradient is not finite."""
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
