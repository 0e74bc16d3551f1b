"""The quality of estimators: bias, noise and usefulness of their updates, from the updates of many batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .gradients import BatchOfEstimates
from .jackknife import Integers, Interval, Mean, Numbers, interval, products, squared_mean
from .truth import Truth, without_blocks

BLOCKS = 40  # blocks of batches, and of the true gradient's prompts, at most
MEMORY = 2 * 2**30  # bytes of all block sums, where 3 blocks need no more


def blocks_for(methods: int, parameters: int, most: int) -> int:
    """Number of blocks, 3 to 40, for the sums of ``methods`` estimators of ``parameters`` parameters.

    As many as fit in 2 GiB of float32; fewer make the intervals less certain (Student's t has blocks − 1 degrees of
    freedom). Three are always kept, whatever they take; of large models measure few methods, or train an adapter.
    """
    fit = MEMORY // (4 * parameters * (methods + 2))
    return max(3, min(BLOCKS, most, fit))


@dataclass(frozen=True)
class Scalars:
    """Numbers of one estimator in each batch, [batches]; 0 where a batch has no gradient."""

    square: Numbers  # |ĝ|²
    along: Numbers  # ĝ · g*
    entropy: Numbers  # ĝ · ∇H
    adam_square: Numbers  # ĝ · D ĝ
    adam_along: Numbers  # ĝ · D g*


class Updates:
    """Sums over batches of the updates of each method; only block sums and a few vectors per method are kept."""

    def __init__(self, truths: Mapping[str, Truth], batches: int, blocks: int) -> None:
        """``truths``: method → the true gradient of its aggregation."""
        methods, self.truths = list(truths), truths
        metric = truths[methods[0]].metric
        size, place = len(metric), metric.device
        self.methods, self.metric = methods, metric
        self.block_of: Integers = np.arange(batches, dtype=np.int64) * blocks // batches
        self.sums = torch.zeros(len(methods), blocks, size, device=place)
        self.units = torch.zeros(len(methods), size, device=place)  # Σ ĝ / |ĝ|
        self.adam_units = torch.zeros(len(methods), size, device=place)  # Σ D ĝ / |ĝ|_D
        self.scalars = np.zeros((5, len(methods), batches))
        self.penalties: dict[str, list[float]] = {}
        self.ratios = np.zeros((len(methods), 4))  # Σ n, Σ n mean, Σ n square, Σ n clipped

    def add(self, number: int, batch: BatchOfEstimates) -> None:
        """Add the updates of the batch ``number``."""
        for i, (update, metrics) in enumerate(zip(batch.updates, batch.metrics, strict=True)):
            mean, variance = metrics["ratio_mean"], metrics["ratio_variance"]
            clipped = metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
            self.ratios[i] += batch.tokens * np.array([1.0, mean, variance + mean**2, clipped])
            if update is None:
                continue
            scaled = self.metric * update
            along = self.truths[self.methods[i]].directions @ update
            inner = torch.stack([update @ update, *along, update @ scaled])
            square, reward, entropy, adam_reward, adam_square = inner.tolist()
            self.scalars[:, i, number] = square, reward, entropy, adam_square, adam_reward
            self.sums[i, self.block_of[number]] += update
            self.units[i].add_(update, alpha=1 / math.sqrt(square))
            self.adam_units[i].add_(scaled, alpha=1 / math.sqrt(adam_square))
        for name, gradient in batch.penalties.items():
            self.penalties.setdefault(name, []).append(0.0 if gradient is None else float(gradient @ gradient))

    def of(self, method: str) -> Scalars:
        """The numbers of a method in each batch."""
        return Scalars(*self.scalars[:, self.methods.index(method)])

    @property
    def any_gradient(self) -> Any:
        """Mask of batches with a gradient for any method. [batches]."""
        return (self.scalars[0] > 0).any(0)

    def measures(self, method: str, reference: str) -> tuple[dict[str, Any], bool]:
        """The columns of a row of the record, and whether `bias_cosine` is determined (docs/estimators.md)."""
        i, scalars = self.methods.index(method), self.of(method)
        truth = self.truths[method]
        bias = self._bias(i, scalars, truth)
        tokens, first, second, clipped = self.ratios[i]
        second /= tokens
        mean = first / tokens
        squares = Mean(scalars.square, self.block_of)
        penalty = math.sqrt(float(np.mean(self.penalties[method])) / squares.value) if self._penalised(i) else 0.0
        return {
            **bias,
            "cosine": self._cosine(scalars.along, scalars.square, self.units[i], truth),
            "adam_cosine": self._cosine(scalars.adam_along, scalars.adam_square, self.adam_units[i], truth, adam=True),
            "entropy_direction": self._entropy(scalars, self.units[i], truth),
            "norm": interval(math.sqrt(squares.value), np.sqrt(np.maximum(squares.replicates, 0.0))),
            "cosine_difference": self._difference(i, self.methods.index(reference)),
            "clip_fraction": clipped / tokens,
            "ratio_variance": max(0.0, second - mean**2),
            "effective_sample_share": mean**2 / second if second else 0.0,
            "penalty_share": penalty,
        }, bias["bias_cosine"][1:] != UNDETERMINED

    def _penalised(self, i: int) -> bool:
        return self.methods[i] in self.penalties and self.scalars[0, i].any()

    def _bias(self, i: int, scalars: Scalars, truth: Truth) -> dict[str, Interval]:
        n, block_of = len(scalars.square), self.block_of
        counts = np.bincount(block_of)
        total = self.sums[i].sum(0)
        with_block = products(self.sums[i], total.unsqueeze(0))[:, 0]
        of_block = np.array([float(products(b[None], b[None])[0, 0]) for b in self.sums[i]])
        squares = Mean(scalars.square, block_of)
        left = n - counts
        # |E ĝ|², unbiased, and without each block of batches.
        signal = squared_mean(float(with_block.sum()), float(scalars.square.sum()), n)
        signals = squared_mean(with_block.sum() - 2 * with_block + of_block, squares.replicates * left, left)
        along, norm = Mean(scalars.along, block_of), truth.norms[0]
        by_truth = without_blocks(truth.gradient, total) / n
        noise, noises = squares.value - signal, squares.replicates - signals
        return {
            "bias_cosine": _cosine_of_means(along, by_truth, (signal, signals), norm),
            "length": interval(along.value / norm[0], along.replicates / norm[0], by_truth / norm[1]),
            "snr": interval(_over(signal, noise), np.array([_over(*x) for x in zip(signals, noises, strict=True)])),
        }

    def _mean_of_units(self, along: Numbers, square: Numbers) -> Mean:
        """The mean of ĝ · x / |ĝ| over the batches with a gradient."""
        return Mean(along / np.sqrt(np.where(square > 0, square, 1.0)), self.block_of, square > 0)

    def _cosine(self, along: Numbers, square: Numbers, units: Tensor, truth: Truth, adam: bool = False) -> Interval:
        norm = truth.norms[1 if adam else 0]
        mean = self._mean_of_units(along, square)
        by_truth = without_blocks(truth.gradient, units) / max(1.0, mean.count)
        root = math.sqrt(norm[0])
        return interval(mean.value / root, mean.replicates / root, by_truth / np.sqrt(norm[1]))

    def _entropy(self, scalars: Scalars, units: Tensor, truth: Truth) -> Interval:
        mean = self._mean_of_units(scalars.entropy, scalars.square)
        by_truth = without_blocks(truth.entropy, units) / max(1.0, mean.count)
        return interval(mean.value, mean.replicates, by_truth)

    def _difference(self, i: int, j: int) -> Interval:
        if i == j:
            return 0.0, 0.0, 0.0
        # Each cosine is with the true gradient of its own aggregation, in units of that one's length.
        square, along = self.scalars[0], self.scalars[1]
        truths = [self.truths[self.methods[k]] for k in (i, j)]
        roots = [math.sqrt(truth.norms[0][0]) for truth in truths]
        cosines = [along[k] / np.sqrt(np.where(square[k] > 0, square[k], 1.0)) for k in (i, j)]
        mean = Mean(cosines[0] / roots[0] - cosines[1] / roots[1], self.block_of, (square[i] > 0) & (square[j] > 0))
        counts = [max(1, int((square[k] > 0).sum())) for k in (i, j)]
        one, other = (
            without_blocks(truth.gradient, self.units[k] / count) / np.sqrt(truth.norms[0][1])
            for truth, k, count in zip(truths, (i, j), counts, strict=True)
        )
        return interval(mean.value, mean.replicates, one - other)


UNDETERMINED = (-1.0, 1.0)


def _cosine_of_means(
    along: Mean, by_truth: Numbers, signal: tuple[float, Numbers], norm: tuple[float, Numbers]
) -> Interval:
    """E ĝ · g* / (|E ĝ| |g*|) with both lengths free of noise, so that it may exceed 1.

    Where nothing is known of the direction of the mean update, the interval is [−1, 1]: the jackknife's is no shorter,
    or |E ĝ|² without some block is not positive.
    """
    value, left = signal
    if value > 0 and bool((left > 0).all()):
        root = math.sqrt(value)
        cosine = interval(
            along.value / (root * math.sqrt(norm[0])),
            along.replicates / np.sqrt(left * norm[0]),
            by_truth / (root * np.sqrt(norm[1])),
        )
        if cosine[1] > -1 or cosine[2] < 1:
            return cosine
    spread = math.sqrt((len(left) - 1) * float(np.var(left)))
    largest = max(value, spread)
    raw = along.value / math.sqrt(largest * norm[0]) if largest > 0 else 0.0
    return max(-1.0, min(1.0, raw)), *UNDETERMINED


def _over(signal: float, noise: float) -> float:
    """Signal over noise; 0 where there is neither, which is a method without any gradient."""
    return signal / noise if noise > 0 else 0.0
