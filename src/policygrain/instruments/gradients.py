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


@dataclass(frozen=True)
class Coefficients:
    """−∂loss/∂log π and −∂loss/∂entropy of each token, [batch, tokens]; None where the loss reads no entropy."""

    log_probs: Tensor
    entropy: Tensor | None

    @property
    def rows(self) -> Tensor:
        """Which responses have any. [batch], bool."""
        found = (self.log_probs != 0).any(1)
        return found if self.entropy is None else found | (self.entropy != 0).any(1)

    def minus(self, other: Coefficients) -> Coefficients:
        """The difference of two losses."""
        entropy = self.entropy
        if entropy is not None and other.entropy is not None:
            entropy = entropy - other.entropy
        return Coefficients(self.log_probs - other.log_probs, entropy)

    def equals(self, other: Coefficients) -> bool:
        """Whether both are the same numbers."""
        if self.entropy is not None and other.entropy is not None:
            return torch.equal(self.log_probs, other.log_probs) and torch.equal(self.entropy, other.entropy)
        return self.entropy is other.entropy and torch.equal(self.log_probs, other.log_probs)


@dataclass
class BatchOfEstimates:
    """What estimators make of one batch, in the order of the methods; ``None``: no gradient at all.

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
    wanted: dict[tuple[str, str], Coefficients] = {}
    for method in methods:
        tokens = with_advantages(batch, rewards, method).replace(
            log_probs=now.log_probs, entropy=now.entropy, step=None
        )
        whole, metrics = _coefficients(method, tokens, seed)
        result.metrics.append(metrics)
        wanted["update", method.name] = whole
        if method.penalties:
            alone, _ = _coefficients(dataclasses.replace(method, penalties=()), tokens, seed)
            wanted["penalty", method.name] = whole.minus(alone)
    gradients = _backward(measured, batch, list(wanted.values()))
    for (kind, name), gradient in zip(wanted, gradients, strict=True):
        if kind == "update":
            result.updates.append(gradient)
        else:
            result.penalties[name] = gradient
    return result


def _coefficients(method: Method, tokens: TokenBatch, seed: int) -> tuple[Coefficients, dict[str, float]]:
    by_log_probs, by_entropy, metrics = coefficients(method, tokens.replace(step=method.step_of(tokens)), seed)
    return Coefficients(by_log_probs, by_entropy), merge_metrics([metrics])


def _backward(measured: MeasuredPolicy, batch: TrainingBatch, wanted: list[Coefficients]) -> list[Tensor | None]:
    """Σ coefficients · ∂/∂parameters for each of ``wanted``; equal ones share a backward pass."""
    used = torch.stack([c.rows for c in wanted]).any(0)
    first = [next(j for j in range(i + 1) if wanted[j].equals(c)) for i, c in enumerate(wanted)]
    live = [i for i in range(len(wanted)) if first[i] == i and bool(wanted[i].rows.any())]
    found: list[Tensor | None] = [None] * len(wanted)
    rows = used.nonzero().squeeze(1)
    if not len(rows):
        return found
    chosen, settings = batch.sequences.rows(rows), measured.settings
    by_entropy = any(c.entropy is not None for c in wanted)
    for index in micro_batches(chosen, settings.micro_batch_tokens):
        part = chosen.rows(index)
        scores = score_tokens(measured.policy.model, part, settings.temperature, by_entropy)
        width = part.mask.shape[1]
        for i in live:
            outputs, weights = [scores.log_probs], [wanted[i].log_probs[rows[index], :width]]
            if (entropy := wanted[i].entropy) is not None:
                outputs.append(scores.entropy)
                weights.append(entropy[rows[index], :width])
            gradient = flat_gradient(measured.parameters, outputs, weights, again=i != live[-1])
            before = found[i]
            found[i] = gradient if before is None else before.add_(gradient)
    return [found[i] for i in first]
