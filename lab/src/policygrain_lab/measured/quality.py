"""The quality of estimators: bias and noise of their updates, from updates on many batches and the true gradient.

Squared means are corrected for sampling noise (U-statistics). Intervals are by the jackknife, which leaves out one
block of batches, or of the true gradient's responses, at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Scalar = TypeVar("Scalar", float, Numbers)
Interval = tuple[float, float, float]  # value, low, high
CHUNK = 1 << 16  # parameters that are converted to double precision at once
BLOCKS = 40  # blocks of batches, and of the true gradient's prompts, at most
MEMORY = 2 * 2**30  # bytes of all block sums, unless 3 blocks need more
UNDETERMINED = (-1.0, 1.0)


def blocks_for(methods: int, parameters: int, most: int) -> int:
    """Number of blocks, 3 to 40, for the sums of ``methods`` estimators of ``parameters`` parameters.

    As many as fit in 2 GiB of float32; fewer make the intervals less certain (Student's t has blocks − 1 degrees of
    freedom). At least three are kept, even if they need more memory: for large models measure few methods, or train an
    adapter.
    """
    fit = MEMORY // (4 * parameters * (methods + 2))
    return max(3, min(BLOCKS, most, fit))


@dataclass(frozen=True)
class Truth:
    """The true gradient of an aggregation, as the mean gradient of each block of responses [blocks, parameters]."""

    gradient: Tensor

    @cached_property
    def mean(self) -> Tensor:
        """g*. [parameters]."""
        return self.gradient.mean(0)

    @cached_property
    def squared_norm(self) -> tuple[float, Numbers]:
        """|g*|² without sampling noise, and the same without each block. They may be ≤ 0."""
        inner = products(self.gradient, self.gradient)
        squares, n = np.diag(inner), len(inner)
        total = float(inner.sum())
        left = squared_mean(total - 2 * inner.sum(1) + squares, squares.sum() - squares, n - 1)
        return squared_mean(total, float(squares.sum()), n), left

    @property
    def known(self) -> bool:
        """Whether the gradient differs from 0: its squared norm is positive, also when any one block is left out."""
        value, left = self.squared_norm
        return value > 0 and bool((left > 0).all())

    @property
    def weak(self) -> bool:
        """Whether the 95% interval of the squared norm contains 0."""
        return interval(*self.squared_norm)[1] <= 0

    def along(self, row: Tensor) -> Numbers:
        """Σ row · g* with g* without each block. [blocks]."""
        inner = products(self.gradient, row.unsqueeze(0))[:, 0]
        return (inner.sum() - inner) / (len(inner) - 1)


class Estimates(NamedTuple):
    """Updates by the estimators from one batch, and metrics of their losses, in the order of the methods.

    An update is ``None`` where there is no gradient at all. ``tokens`` are those of the batch.
    """

    updates: list[Tensor | None]
    metrics: list[dict[str, float]]
    tokens: int


class Updates:
    """Sums over batches of the updates of each method; only block sums and a vector per method are kept."""

    def __init__(self, truths: Mapping[str, Truth], batches: int, blocks: int) -> None:
        """``truths``: method → the true gradient of its aggregation."""
        self.methods, self.truths = list(truths), truths
        mean = truths[self.methods[0]].mean
        self.block_of: Integers = np.arange(batches, dtype=np.int64) * blocks // batches
        self.sums = torch.zeros(len(truths), blocks, len(mean), device=mean.device)
        self.units = torch.zeros(len(truths), len(mean), device=mean.device)  # Σ ĝ / |ĝ|
        # |ĝ|² and ĝ · g* of each batch; 0 where it has no gradient.
        self.square, self.along = np.zeros((2, len(truths), batches))
        self.ratios = np.zeros((len(truths), 4))  # Σ n, Σ n mean, Σ n square, Σ n clipped

    def add(self, number: int, batch: Estimates) -> None:
        """Add the updates of the batch ``number``."""
        for i, (update, metrics) in enumerate(zip(batch.updates, batch.metrics, strict=True)):
            mean, variance = metrics["ratio_mean"], metrics["ratio_variance"]
            clipped = metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
            self.ratios[i] += batch.tokens * np.array([1.0, mean, variance + mean**2, clipped])
            # In float64: the square of an update by products over long responses may be too small for float32.
            norm = 0.0 if update is None else float(torch.linalg.vector_norm(update, dtype=torch.float64))
            if update is None or norm == 0:
                continue
            self.square[i, number], self.along[i, number] = norm**2, float(update @ self.truths[self.methods[i]].mean)
            self.sums[i, self.block_of[number]] += update
            self.units[i].add_(update, alpha=1 / norm)

    @property
    def any_gradient(self) -> NDArray[np.bool_]:
        """Mask of batches with a gradient for any method. [batches]."""
        mask: NDArray[np.bool_] = self.square.max(0) > 0
        return mask

    def measures(self, method: str, reference: str) -> tuple[dict[str, Any], bool]:
        """The columns of a row of the record, and whether `bias_cosine` is determined."""
        i, truth = self.methods.index(method), self.truths[method]
        bias = self._bias(i, truth)
        tokens, first, second, clipped = self.ratios[i]
        second /= tokens
        mean = first / tokens
        squares = Mean(self.square[i], self.block_of)
        return {
            **bias,
            "cosine": self._cosine(i, truth),
            "norm": interval(math.sqrt(squares.value), np.sqrt(np.maximum(squares.replicates, 0.0))),
            "cosine_difference": self._difference(i, self.methods.index(reference)),
            "clip_fraction": clipped / tokens,
            "ratio_variance": max(0.0, second - mean**2),
            "effective_sample_share": mean**2 / second if second else 0.0,
        }, bias["bias_cosine"][1:] != UNDETERMINED

    def _bias(self, i: int, truth: Truth) -> dict[str, Interval]:
        square, block_of = self.square[i], self.block_of
        n, counts = len(square), np.bincount(block_of)
        total = self.sums[i].sum(0)
        with_block = products(self.sums[i], total.unsqueeze(0))[:, 0]
        of_block = np.array([float(products(b[None], b[None])[0, 0]) for b in self.sums[i]])
        squares = Mean(square, block_of)
        left = n - counts
        # |E ĝ|², unbiased, and without each block of batches.
        signal = squared_mean(float(with_block.sum()), float(square.sum()), n)
        signals = squared_mean(with_block.sum() - 2 * with_block + of_block, squares.replicates * left, left)
        along, norm = Mean(self.along[i], block_of), truth.squared_norm
        by_truth = truth.along(total) / n
        noise, noises = squares.value - signal, squares.replicates - signals
        return {
            "bias_cosine": _cosine_of_means(along, by_truth, (signal, signals), norm),
            "length": interval(along.value / norm[0], along.replicates / norm[0], by_truth / norm[1]),
            "snr": interval(_over(signal, noise), np.array([_over(*x) for x in zip(signals, noises, strict=True)])),
        }

    def _cosines(self, i: int) -> Numbers:
        """ĝ · g* / |ĝ| of each batch."""
        cosines: Numbers = self.along[i] / np.sqrt(np.where(self.square[i] > 0, self.square[i], 1.0))
        return cosines

    def _cosine(self, i: int, truth: Truth) -> Interval:
        norm, mean = truth.squared_norm, Mean(self._cosines(i), self.block_of, self.square[i] > 0)
        by_truth = truth.along(self.units[i]) / max(1.0, mean.count)
        root = math.sqrt(norm[0])
        return interval(mean.value / root, mean.replicates / root, by_truth / np.sqrt(norm[1]))

    def _difference(self, i: int, j: int) -> Interval:
        if i == j:
            return 0.0, 0.0, 0.0
        # Each cosine is with the true gradient of its own aggregation, in units of that one's length.
        truths = [self.truths[self.methods[k]] for k in (i, j)]
        roots = [math.sqrt(truth.squared_norm[0]) for truth in truths]
        apart = self._cosines(i) / roots[0] - self._cosines(j) / roots[1]
        mean = Mean(apart, self.block_of, (self.square[i] > 0) & (self.square[j] > 0))
        counts = [max(1, int((self.square[k] > 0).sum())) for k in (i, j)]
        one, other = (
            truth.along(self.units[k] / count) / np.sqrt(truth.squared_norm[1])
            for truth, k, count in zip(truths, (i, j), counts, strict=True)
        )
        return interval(mean.value, mean.replicates, one - other)


def _cosine_of_means(
    along: Mean, by_truth: Numbers, signal: tuple[float, Numbers], norm: tuple[float, Numbers]
) -> Interval:
    """E ĝ · g* / (|E ĝ| |g*|), with both lengths corrected for noise, so that the value may exceed 1.

    The interval is [−1, 1] if nothing is known about the direction of the mean update: if the jackknife's interval
    contains [−1, 1], or |E ĝ|² is not positive when some block is left out.
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
    """Signal over noise; 0 without noise, which only a method without any gradient has."""
    return signal / noise if noise > 0 else 0.0


def products(a: Tensor, b: Tensor) -> Numbers:
    """Inner products of the rows of ``a`` [n, parameters] and ``b`` [m, parameters], in double precision. [n, m].

    Arguments are converted in chunks, so neither is copied as a whole.
    """
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        total += a[:, part].double() @ b[:, part].double().T
    return np.asarray(total.cpu().numpy(), dtype=np.float64)


def squared_mean(total: Scalar, squares: Scalar, n: Any) -> Scalar:
    """An unbiased estimate of |E X|² from n independent X_i: (|Σ X_i|² − Σ |X_i|²) / (n (n − 1)). It may be negative.

    ``total`` is |Σ X_i|², ``squares`` is Σ |X_i|². The plain |mean|² is too large by tr(Cov X) / n, which is the larger
    part of |mean|² if X is the gradient of a few rollouts.
    """
    unbiased: Scalar = (total - squares) / (n * (n - 1))
    return unbiased


class Mean:
    """The mean of some of n values, and the means without each block."""

    def __init__(self, values: Numbers, blocks: Integers, use: NDArray[np.bool_] | None = None) -> None:
        """``values`` [n]; ``blocks`` [n] numbers them from 0; ``use`` [n]: which values there are (default: all)."""
        present = np.ones(len(values)) if use is None else use.astype(np.float64)
        values = np.where(present > 0, values, 0.0)
        self.count = float(present.sum())
        self.value = float(values.sum() / max(1.0, self.count))
        self.replicates = _without(values, blocks) / np.maximum(1.0, _without(present, blocks))


def _without(values: Numbers, blocks: Integers) -> Numbers:
    """Sums of ``values`` [n] without those of each block. [blocks]."""
    sums = np.bincount(blocks, values)
    left: Numbers = values.sum() - sums
    return left


def interval(value: float, *replicates: Numbers) -> Interval:
    """(value, low, high): the 95% interval of Student's t around ``value``.

    Each item of ``replicates`` holds the values without one block of one source of noise. The jackknife's variance of a
    source with n blocks is (n − 1)/n Σ (θ_i − mean)²; sources are independent, so their variances add up. Degrees of
    freedom are those of the source with the fewest blocks, less one.
    """
    error = sum((len(r) - 1) * float(np.var(r)) for r in replicates) ** 0.5
    width = float(stats.t.ppf(0.975, min(map(len, replicates)) - 1)) * error
    return value, value - width, value + width
