"""The true gradient at a policy, from many fresh responses of that policy, in blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..model.logprobs import score_tokens
from ..model.sequences import Sequences, micro_batches
from ..objective.advantage import DrGrpo
from .jackknife import Numbers, products, squared_mean
from .policy import MeasuredPolicy

ENTROPY_SHARE = 4  # the entropy's gradient is computed from one in this many prompts: it has far less noise


@dataclass(frozen=True)
class Truth:
    """Means of the gradient of each block of responses.

    ``gradient`` [blocks, parameters]: of the expected reward per token; ``entropy`` [blocks, parameters]: of the mean
    entropy per token, at the states that the responses visit; ``accuracy`` of the responses, 0 to 1.
    """

    gradient: Tensor
    entropy: Tensor
    accuracy: float

    def squared_norm(self, metric: Tensor | None = None) -> tuple[float, Numbers]:
        """|g*|² in a diagonal ``metric``, without sampling noise, and the same without each block. They may be ≤ 0."""
        inner = products(self.gradient, self.gradient, metric)
        own, n = np.diag(inner), len(inner)
        total = float(inner.sum())
        left = squared_mean(total - 2 * inner.sum(1) + own, own.sum() - own, n - 1)
        return squared_mean(total, float(own.sum()), n), left


def measure_truth(measured: MeasuredPolicy, prompts: int, blocks: int, length: float, *key: object) -> Truth:
    """The on-policy gradient with the advantage reward − mean of the group, from ``prompts`` prompts.

    Its expectation is (G − 1)/G ∇E[R] for groups of G. It is divided by ``length``, the mean number of tokens in the
    responses of an ordinary batch, because losses are means over tokens.
    """
    rollouts, sequences = measured.sample(prompts, "truth", *key)
    advantages = DrGrpo()(rollouts.rewards).flatten().to(sequences.ids.device)
    group = rollouts.rewards.shape[1]
    size = sum(p.numel() for p in measured.parameters)
    sums = torch.zeros(2, blocks, size, device=sequences.ids.device)
    for number, part in enumerate(torch.arange(prompts).tensor_split(blocks)):
        rows = (part.unsqueeze(1) * group + torch.arange(group)).flatten().to(sequences.ids.device)
        some = max(1, len(part) // ENTROPY_SHARE) * group
        tokens = int(sequences.mask[rows[:some]].sum())
        _add(measured, sequences, rows[:some], advantages / (len(rows) * length), sums[:, number], 1 / tokens)
        rest = rows[some:]
        _add(measured, sequences, rest[advantages[rest] != 0], advantages / (len(rows) * length), sums[:, number], None)
    return Truth(sums[0], sums[1], float(rollouts.correct.mean()))


def _add(
    measured: MeasuredPolicy,
    sequences: Sequences,
    rows: Tensor,
    weights: Tensor,
    into: Tensor,
    by_entropy: float | None,
) -> None:
    """Add to ``into`` [2, parameters] the gradients of Σ w log π and, with a weight, of the entropies of ``rows``."""
    if not len(rows):
        return
    chosen, model = sequences.rows(rows), measured.policy.model
    for index in micro_batches(chosen, measured.settings.micro_batch_tokens):
        part = chosen.rows(index)
        scores = score_tokens(model, part, measured.settings.temperature, entropy_gradient=by_entropy is not None)
        own = weights[rows[index]].unsqueeze(1) * part.mask
        into[0] += flat_gradient(measured.parameters, [scores.log_probs], [own], again=by_entropy is not None)
        if by_entropy is not None:
            into[1] += flat_gradient(measured.parameters, [scores.entropy], [by_entropy * part.mask])


def flat_gradient(
    parameters: list[Tensor], outputs: list[Tensor], weights: list[Tensor], again: bool = False
) -> Tensor:
    """Σ weights · ∂outputs/∂parameters as one float32 vector. ``again``: keep the graph for another backward pass."""
    found = torch.autograd.grad(outputs, parameters, weights, retain_graph=again, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten().float() for p, g in zip(parameters, found, strict=True)]
    )
