"""Aggregations of per-token terms to one loss, as weights w [batch, tokens]: the aggregate of x is Σ w·x.

Counts are taken over the whole optimizer step, so that micro-batches and ranks add up to the same loss and gradient.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .part import Part, needs

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import TokenBatch


class Aggregation(Part):
    """Weights that aggregate the terms of tokens to one loss."""

    @abc.abstractmethod
    def __call__(self, batch: TokenBatch) -> Tensor:
        """The weights w [batch, tokens]; 0 on padding."""


@dataclass(frozen=True, kw_only=True)
class TokenMean(Aggregation):
    """Mean over all tokens of the step: w = 1/Σ|o_i|. DAPO (2503.14476 eq. 8), TEPO, MPO."""

    name: Literal["token_mean"] = "token_mean"

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / batch.whole.n_tokens


@dataclass(frozen=True, kw_only=True)
class SeqMeanTokenMean(Aggregation):
    """Mean over responses of the mean over their tokens: w = 1/(N |o_i|). GRPO (2402.03300 eq. 3), GSPO.

    N counts responses with a token in the loss.
    """

    name: Literal["seq_mean_token_mean"] = "seq_mean_token_mean"

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / (batch.lengths.clamp(min=1).unsqueeze(1) * batch.whole.n_responses)


@dataclass(frozen=True, kw_only=True)
class SeqMeanTokenSum(Aggregation):
    """Mean over responses of the sum over their tokens: w = 1/N; longer responses weigh more. LUSPO (2602.05261)."""

    name: Literal["seq_mean_token_sum"] = "seq_mean_token_sum"

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / batch.whole.n_responses


@dataclass(frozen=True, kw_only=True)
class SeqMeanTokenSumNorm(Aggregation):
    """`seq_mean_token_sum` divided by the longest possible response: w = 1/(N L_max). Dr. GRPO (2503.20783)."""

    name: Literal["seq_mean_token_sum_norm"] = "seq_mean_token_sum_norm"

    def __call__(self, batch: TokenBatch) -> Tensor:
        return _mask(batch) / (batch.whole.n_responses * batch.whole.max_length)


@dataclass(frozen=True, kw_only=True)
class PromptMean(Aggregation):
    """Mean over prompts of the mean over the tokens of a prompt's responses: w = 1/(P Σ_{j in group} |o_j|).

    DAPO's equation for one prompt (2503.14476 eq. 8), whose expectation over prompts is read as this mean or as
    `token_mean`. P counts prompts with a token in the loss.
    """

    name: Literal["prompt_mean"] = "prompt_mean"

    @needs("groups")
    def __call__(self, batch: TokenBatch) -> Tensor:
        responses, n_groups = batch.responses, batch.whole.n_groups
        assert batch.groups is not None
        n_groups = responses.n_groups if n_groups is None else n_groups
        lengths = responses.sum_by_group(responses.lengths, batch.groups)
        return _mask(batch) / (lengths.clamp(min=1).unsqueeze(1) * n_groups)


def _mask(batch: TokenBatch) -> Tensor:
    """The mask in the precision of the log-probabilities."""
    return batch.mask.to(batch.log_probs.dtype)
