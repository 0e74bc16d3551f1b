"""Gradients at a policy: the updates of all methods on one batch, and the true gradient, from fresh responses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from policygrain.model.engine import Rollout
from policygrain.model.scoring import micro_batches, score_tokens
from policygrain.objective import Method
from policygrain.objective.batch import TokenBatch
from policygrain.objective.loss import merge_metrics
from policygrain.objective.part import Part
from policygrain.objective.terms import DrGrpo
from policygrain.train.batch import Batch

from ..rollouts.coefficients import coefficients
from .measured_policy import MeasuredPolicy, with_advantages
from .quality import Estimates, Truth


def estimate(
    measured: MeasuredPolicy, batch: Batch, rewards: Tensor, methods: Sequence[Method], seed: int
) -> Estimates:
    """The update −∂loss/∂parameters of each method on one batch, before any clipping of its norm. Flat, float32.

    ``rewards`` [prompts, group]; each method computes its own advantages from them. Losses are computed on the whole
    batch from one forward pass without gradient. Their derivatives by log-probabilities and entropies are then the
    weights of the backward passes. Random choices of a loss are keyed by ``seed``, the same for all methods.
    """
    now = measured.policy.score(batch.rollouts, measured.settings)
    wanted, metrics = [], []
    for method in methods:
        tokens = with_advantages(batch, rewards, method)
        tokens = tokens.replace(log_probs=now.log_probs, entropy=now.entropy, step=None)
        by_log_probs, by_entropy, found = coefficients(method, tokens.replace(step=method.step_of(tokens)), seed)
        wanted.append([by_log_probs] if by_entropy is None else [by_log_probs, by_entropy])
        metrics.append(merge_metrics([found]))
    rows = torch.arange(len(batch.rollouts))
    updates = weighted_gradients(measured, batch.rollouts, rows, wanted)
    return Estimates(updates, metrics, int(batch.tokens.mask.sum()))


def measure_truths(
    measured: MeasuredPolicy, prompts: int, blocks: int, aggregations: Sequence[Part], *key: object
) -> tuple[list[Truth], float]:
    """The on-policy gradient of each aggregation with the advantage reward − mean, and the accuracy of the responses.

    The on-policy gradient is the mean of an unbiased estimator with this aggregation: (1/N) Σ A ∇log π with the
    aggregation's weights, over all N responses to ``prompts`` prompts. A custom aggregation must not read
    log-probabilities, which are 0 here.
    """
    pool = measured.pool(prompts, "truth", *key)
    rollouts, place, group = pool.batch.rollouts, measured.policy.model.device, measured.settings.group
    mask = pool.batch.tokens.mask  # of all responses: no sampler here masks truncated ones
    nothing = torch.zeros(mask.shape, device=place)
    batch = TokenBatch(
        log_probs=nothing,
        old_log_probs=nothing,
        advantages=DrGrpo()(pool.rewards).flatten().to(place),
        mask=mask,
        groups=torch.arange(prompts, device=place).repeat_interleave(group),
        max_length=measured.settings.max_tokens,
    )
    weights = [aggregation(batch) * batch.advantages for aggregation in aggregations]
    size = sum(p.numel() for p in measured.parameters)
    sums = torch.zeros(len(aggregations), blocks, size, device=place)
    for number, part in enumerate(torch.arange(prompts).tensor_split(blocks)):
        rows = (part.unsqueeze(1) * group + torch.arange(group)).flatten()
        scaled = [[w * (prompts / len(part))] for w in weights]
        for total, gradient in zip(sums, weighted_gradients(measured, rollouts, rows, scaled), strict=True):
            if gradient is not None:
                total[number] = gradient
    return [Truth(gradient) for gradient in sums], sum(rollout.correct for rollout in rollouts) / len(rollouts)


def weighted_gradients(
    measured: MeasuredPolicy, rollouts: Sequence[Rollout], rows: Tensor, wanted: Sequence[list[Tensor]]
) -> list[Tensor | None]:
    """Σ weights · ∂(log π, entropy)/∂parameters over the responses ``rows``, for each of ``wanted``.

    An item of ``wanted`` has the weights of log π and, if it depends on entropies, those of entropies, each [batch,
    tokens]. The gradient of an item whose weights are all 0 is None. Items with equal weights share a backward pass;
    responses whose weights are all 0 are left out.
    """
    stacked = [torch.stack([w[rows] for w in weights]) for weights in wanted]
    first = [next(j for j, other in enumerate(stacked) if torch.equal(other, one)) for one in stacked]
    live = [i for i, weights in enumerate(stacked) if first[i] == i and bool(weights.any())]
    gradients: list[Tensor | None] = [None] * len(wanted)
    if not live:
        return gradients
    used = torch.stack([stacked[i].any(0).any(1) for i in live]).any(0)
    rows, reads_entropy = rows[used.cpu()], any(len(stacked[i]) > 1 for i in live)
    chosen, settings = [rollouts[row] for row in rows], measured.settings
    for index in micro_batches(chosen, settings.micro_batch_tokens):
        part = [chosen[row] for row in index]
        scores = score_tokens(measured.policy.model, part, settings.temperature, reads_entropy)
        for i in live:
            weights = [w[rows[index], : scores.log_probs.shape[1]] for w in wanted[i]]
            outputs = [scores.log_probs, scores.entropy][: len(weights)]
            gradient = flat_gradient(measured.parameters, outputs, weights, again=i != live[-1])
            before = gradients[i]
            gradients[i] = gradient if before is None else before.add_(gradient)
    return [gradients[i] for i in first]


def flat_gradient(
    parameters: list[Tensor], outputs: list[Tensor], weights: list[Tensor], again: bool = False
) -> Tensor:
    """Σ weights · ∂outputs/∂parameters as one float32 vector. ``again``: keep the graph for another backward pass."""
    gradients = torch.autograd.grad(
        outputs, parameters, weights, retain_graph=again, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten().float() for gradient in gradients])
