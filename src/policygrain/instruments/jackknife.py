"""Squared means without their sampling noise (U-statistics), and intervals by leaving out one block at a time."""

from __future__ import annotations

from typing import Any, TypeVar

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


def products(a: Tensor, b: Tensor, weights: Tensor | None = None) -> Numbers:
    """Σ_p w_p a_ip b_jp of the rows of ``a`` [n, parameters] and ``b`` [m, parameters], in double precision. [n, m].

    ``weights`` [parameters]: the diagonal of a metric; None: ones. There is no copy of the whole of an argument.
    """
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        left = a[:, part].double()
        if weights is not None:
            left = left * weights[part]
        total += left @ b[:, part].double().T
    return np.asarray(total.cpu().numpy(), dtype=np.float64)


def squared_mean(total: Scalar, squares: Scalar, n: Any) -> Scalar:
    """An unbiased estimate of |E X|² from n independent X_i: (|Σ X_i|² − Σ |X_i|²) / (n (n − 1)). It may be negative.

    ``total`` is |Σ X_i|², ``squares`` is Σ |X_i|². The plain |mean|² is too large by tr(Cov X) / n, which is most of it
    where X is the gradient of a few rollouts.
    """
    unbiased: Scalar = (total - squares) / (n * (n - 1))
    return unbiased


def without(values: Numbers, blocks: Integers) -> Numbers:
    """Sums of ``values`` [n] without those of each block; ``blocks`` [n] numbers them from 0. [blocks]."""
    sums = np.bincount(blocks, values)
    left: Numbers = values.sum() - sums
    return left


class Mean:
    """The mean of some of n values, and the means without each block."""

    def __init__(self, values: Numbers, blocks: Integers, use: NDArray[np.bool_] | None = None) -> None:
        """``values`` [n], ``blocks`` [n]; ``use`` [n] tells which values there are (default: all)."""
        present = np.ones(len(values)) if use is None else use.astype(np.float64)
        values = np.where(present > 0, values, 0.0)
        self.count = float(present.sum())
        self.value = float(values.sum() / max(1.0, self.count))
        self.replicates = without(values, blocks) / np.maximum(1.0, without(present, blocks))


def interval(value: float, *replicates: Numbers) -> Interval:
    """(value, low, high): the 95% interval of Student's t around ``value``.

    Each item of ``replicates`` holds the values without one block of one source of noise. The jackknife's variance of a
    source with n blocks is (n − 1)/n Σ (θ_i − mean)²; sources are independent, so their variances add up. Degrees of
    freedom are those of the source with the fewest blocks, less one.
    """
    error = sum((len(r) - 1) * float(np.var(r)) for r in replicates) ** 0.5
    width = float(stats.t.ppf(0.975, min(map(len, replicates)) - 1)) * error
    return value, value - width, value + width
