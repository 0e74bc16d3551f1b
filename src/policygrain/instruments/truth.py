"""The true gradient at a policy for each aggregation, from many fresh responses of that policy, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..model.logprobs import score_tokens
from ..model.sequences import Sequences, micro_batches
from ..objective.advantage import DrGrpo
from ..objective.batch import TokenBatch
from ..objective.part import Part
from .jackknife import Numbers, interval, products, squared_mean
from .measured_policy import MeasuredPolicy

ENTROPY_SHARE = 4  # the entropy's gradient is computed from one in this many prompts: it has far less noise


@dataclass(frozen=True)
class Truth:
    """Means of the gradient of each block of responses.

    ``gradient`` [blocks, parameters]: of the expected reward as an aggregation weights its tokens; ``entropy`` [blocks,
    parameters]: of the mean entropy per token, at the states that the responses visit; ``metric`` [parameters]: the
    diagonal D of Adam's metric; ``accuracy`` of the responses, 0 to 1.
    """

    gradient: Tensor
    entropy: Tensor
    metric: Tensor
    accuracy: float

    @cached_property
    def directions(self) -> Tensor:
        """g*, the gradient of the entropy, and D g*. [3, parameters]."""
        mean = self.gradient.mean(0)
        return torch.stack([mean, self.entropy.mean(0), self.metric * mean])

    @cached_property
    def norms(self) -> tuple[tuple[float, Numbers], tuple[float, Numbers]]:
        """|g*|² and |g*|² in Adam's metric, each with its values without each block."""
        return self.squared_norm(), self.squared_norm(self.metric)

    @property
    def known(self) -> bool:
        """Whether the gradient can be told from 0: its squared norms are positive, also without any one block."""
        return all(value > 0 and bool((left > 0).all()) for value, left in self.norms)

    @property
    def weak(self) -> bool:
        """Whether the 95% interval of the squared norm, in either metric, contains 0."""
        return any(interval(value, left)[1] <= 0 for value, left in self.norms)

    def squared_norm(self, metric: Tensor | None = None) -> tuple[float, Numbers]:
        """|g*|² in a diagonal ``metric``, without sampling noise, and the same without each block. They may be ≤ 0."""
        inner = products(self.gradient, self.gradient, metric)
        squares, n = np.diag(inner), len(inner)
        total = float(inner.sum())
        left = squared_mean(total - 2 * inner.sum(1) + squares, squares.sum() - squares, n - 1)
        return squared_mean(total, float(squares.sum()), n), left


def without_blocks(blocks: Tensor, row: Tensor) -> Numbers:
    """Σ row · (mean of ``blocks`` [blocks, parameters]) without each block. [blocks]."""
    inner = products(blocks, row.unsqueeze(0))[:, 0]
    return (inner.sum() - inner) / (len(inner) - 1)


def measure_truths(
    measured: MeasuredPolicy, prompts: int, blocks: int, aggregations: Sequence[Part], metric: Tensor, *key: object
) -> list[Truth]:
    """The on-policy gradient of each aggregation with the advantage reward − mean, from ``prompts`` prompts.

    It is what an unbiased estimator with this aggregation has as its mean: (1/N) Σ A ∇log π with the aggregation's
    weights over all N responses. A custom aggregation may read no log-probabilities: here they are 0.
    """
    pool = measured.pool(prompts, "truth", *key)
    rollouts, sequences = pool.rollouts, pool.batch.sequences
    place, group = sequences.ids.device, rollouts.rewards.shape[1]
    advantages = DrGrpo()(rollouts.rewards).flatten().to(place)
    nothing = torch.zeros(sequences.mask.shape, device=place)
    batch = TokenBatch(
        log_probs=nothing,
        old_log_probs=nothing,
        advantages=advantages,
        mask=sequences.mask,
        groups=torch.arange(prompts, device=place).repeat_interleave(group),
        max_length=measured.settings.max_tokens,
    )
    weights = [aggregation(batch) * batch.advantages for aggregation in aggregations]
    size = sum(p.numel() for p in measured.parameters)
    sums = torch.zeros(len(aggregations) + 1, blocks, size, device=place)  # the last: of entropies
    for number, part in enumerate(torch.arange(prompts).tensor_split(blocks)):
        rows = (part.unsqueeze(1) * group + torch.arange(group)).flatten().to(place)
        some = max(1, len(part) // ENTROPY_SHARE) * group
        tokens = int(sequences.mask[rows[:some]].sum())
        scaled = [w * (prompts / len(part)) for w in weights]
        _add(measured, sequences, rows[:some], scaled, sums[:, number], 1 / tokens)
        rest = rows[some:]
        _add(measured, sequences, rest[advantages[rest] != 0], scaled, sums[:, number], None)
    accuracy = float(rollouts.correct.mean())
    return [Truth(gradient, sums[-1], metric, accuracy) for gradient in sums[:-1]]


def _add(
    measured: MeasuredPolicy,
    sequences: Sequences,
    rows: Tensor,
    weights: Sequence[Tensor],
    into: Tensor,
    by_entropy: float | None,
) -> None:
    """Add to ``into`` [weights + 1, parameters] the gradients of each Σ w log π and, if given, of the entropies."""
    if not len(rows):
        return
    chosen, model = sequences.rows(rows), measured.policy.model
    for index in micro_batches(chosen, measured.settings.micro_batch_tokens):
        part = chosen.rows(index)
        scores = score_tokens(model, part, measured.settings.temperature, entropy_gradient=by_entropy is not None)
        wanted = [(scores.log_probs, w[rows[index], : part.mask.shape[1]]) for w in weights]
        if by_entropy is not None:
            wanted.append((scores.entropy, by_entropy * part.mask))
        for i, (output, weight) in enumerate(wanted):
            into[i] += flat_gradient(measured.parameters, [output], [weight], again=i < len(wanted) - 1)


def flat_gradient(
    parameters: list[Tensor], outputs: list[Tensor], weights: list[Tensor], again: bool = False
) -> Tensor:
    """Σ weights · ∂outputs/∂parameters as one float32 vector. ``again``: keep the graph for another backward pass."""
    gradients = torch.autograd.grad(
        outputs, parameters, weights, retain_graph=again, allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten().float() for gradient in gradients])
