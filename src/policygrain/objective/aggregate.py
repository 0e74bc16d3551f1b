"""Aggregations of per-token terms to one loss, as weights w [batch, tokens]: the aggregate of x is Σ w·x.

Counts are taken over the whole optimizer step, so that micro-batches and ranks add up to the same loss and gradient.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from .part import Part

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import TokenBatch


class Aggregation(Part):
    """Weights that aggregate the terms of tokens to one loss."""

    @abc.abstractmethod
    def __call__(self, batch: TokenBatch) -> Tensor:
        """The weights w [batch, tokens]; 0 on padding."""


class TokenMean(Aggregation, name="token_mean"):
    """Mean over all tokens of the step: w = 1/Σ|o_i|. DAPO (2503.14476 eq. 8), TEPO, MPO."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / batch.whole.n_tokens


class SeqMeanTokenMean(Aggregation, name="seq_mean_token_mean"):
    """Mean over responses of the mean over their tokens: w = 1/(N |o_i|). GRPO (2402.03300 eq. 3), GSPO.

    N counts responses with a token in the loss.
    """

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / (batch.lengths.clamp(min=1).unsqueeze(1) * batch.whole.n_responses)


class SeqMeanTokenSum(Aggregation, name="seq_mean_token_sum"):
    """Mean over responses of the sum over their tokens: w = 1/N; longer responses weigh more. LUSPO (2602.05261)."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / batch.whole.n_responses


class SeqMeanTokenSumNorm(Aggregation, name="seq_mean_token_sum_norm"):
    """`seq_mean_token_sum` divided by the longest possible response: w = 1/(N L_max). Dr. GRPO (2503.20783)."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / (batch.whole.n_responses * batch.whole.max_length)


def _mask(batch: TokenBatch) -> Tensor:
    """The mask in the precision of the log-probabilities."""
    return batch.mask.to(batch.log_probs.dtype)
