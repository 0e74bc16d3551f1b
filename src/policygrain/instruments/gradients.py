"""The updates of all estimators on the same batches: one reading of a batch, one backward pass per estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model.logprobs import score_tokens
from ..model.sequences import micro_batches
from ..objective import Method
from ..objective.batch import TokenBatch
from ..objective.loss import coefficients, merge_metrics
from ..train.update import TrainingBatch
from .measured_policy import MeasuredPolicy, with_advantages
from .truth import flat_gradient


@dataclass
class BatchOfEstimates:
    """Updates by the estimators from one batch, in the order of the methods; ``None``: no gradient at all.

    ``penalties`` are the gradients of the penalties alone, of the methods that have any.
    """

    updates: list[Tensor | None] = field(default_factory=list)
    penalties: dict[str, Tensor | None] = field(default_factory=dict)
    metrics: list[dict[str, float]] = field(default_factory=list)
    tokens: int = 0


def estimate(
    measured: MeasuredPolicy, batch: TrainingBatch, rewards: Tensor, methods: Sequence[Method], seed: int
) -> BatchOfEstimates:
    """The update −∂loss/∂parameters of each method on one batch, before any clipping of its norm. Flat, float32.

    ``rewards`` [prompts, group]; each method computes its own advantages of them. Losses are computed on the whole
    batch from one forward pass without gradient. Their derivatives by the log-probabilities are then the weights of the
    backward passes, which leave out responses that no loss depends on, such as those without an advantage. Random
    choices of a loss are keyed by ``seed``, the same for all.
    """
    now = measured.policy.score(batch.sequences, measured.settings)
    result = BatchOfEstimates(tokens=int(batch.tokens.mask.sum()))
    wanted: dict[tuple[str, str], Tensor] = {}
    for method in methods:
        tokens = with_advantages(batch, rewards, method).replace(
            log_probs=now.log_probs, entropy=now.entropy, step=None
        )
        whole, metrics = _coefficients(method, tokens, seed)
        result.metrics.append(metrics)
        wanted["update", method.name] = whole
        if method.penalties:
            alone, _ = _coefficients(dataclasses.replace(method, penalties=()), tokens, seed)
            wanted["penalty", method.name] = whole - alone
    gradients = _backward(measured, batch, list(wanted.values()))
    for (kind, name), gradient in zip(wanted, gradients, strict=True):
        if kind == "update":
            result.updates.append(gradient)
        else:
            result.penalties[name] = gradient
    return result


def _coefficients(method: Method, tokens: TokenBatch, seed: int) -> tuple[Tensor, dict[str, float]]:
    """−∂loss/∂log π and −∂loss/∂entropy of each token, [2, batch, tokens], and metrics."""
    by_log_probs, by_entropy, metrics = coefficients(method, tokens.replace(step=method.step_of(tokens)), seed)
    by_entropy = torch.zeros_like(by_log_probs) if by_entropy is None else by_entropy
    return torch.stack([by_log_probs, by_entropy]), merge_metrics([metrics])


def _backward(measured: MeasuredPolicy, batch: TrainingBatch, wanted: list[Tensor]) -> list[Tensor | None]:
    """Σ coefficients · ∂/∂parameters for each of ``wanted``; equal ones share a backward pass."""
    rows = torch.stack(wanted).ne(0).any(3).any(1).any(0).nonzero().squeeze(1)
    first = [next(j for j in range(i + 1) if torch.equal(wanted[j], c)) for i, c in enumerate(wanted)]
    live = [i for i in range(len(wanted)) if first[i] == i and bool(wanted[i].any())]
    gradients: list[Tensor | None] = [None] * len(wanted)
    if not live:
        return gradients
    reads_entropy = [bool(c[1].any()) for c in wanted]
    chosen, settings = batch.sequences.rows(rows), measured.settings
    for index in micro_batches(chosen, settings.micro_batch_tokens):
        part = chosen.rows(index)
        scores = score_tokens(measured.policy.model, part, settings.temperature, any(reads_entropy))
        for i in live:
            weights = wanted[i][:, rows[index], : part.mask.shape[1]]
            outputs, used = [scores.log_probs], [weights[0]]
            if reads_entropy[i]:
                outputs.append(scores.entropy)
                used.append(weights[1])
            gradient = flat_gradient(measured.parameters, outputs, used, again=i != live[-1])
            before = gradients[i]
            gradients[i] = gradient if before is None else before.add_(gradient)
    return [gradients[i] for i in first]
