"""Aggregations of per-token terms to one loss, as weights.

Each function returns w [batch, tokens] such that the aggregate of x is Σ w·x. Counts are taken over the whole optimizer
step, so that micro-batches and ranks add up to the same loss and gradient.
"""

from __future__ import annotations

from torch import Tensor

from .batch import TokenBatch


def token_mean(batch: TokenBatch) -> Tensor:
    """1/Σ|o_i| for every token: DAPO (2503.14476 eq. 8), TEPO, MPO."""
    return _mask(batch) / batch.whole.n_tokens


def seq_mean_token_mean(batch: TokenBatch) -> Tensor:
    """1/(N |o_i|): GRPO (2402.03300 eq. 3), GSPO. N counts responses with a token in the loss."""
    return _mask(batch) / (batch.lengths.clamp(min=1).unsqueeze(1) * batch.whole.n_responses)


def seq_mean_token_sum(batch: TokenBatch) -> Tensor:
    """1/N: the sum over a response's tokens, so that long responses count for more. LUSPO (2602.05261)."""
    return _mask(batch) / batch.whole.n_responses


def seq_mean_token_sum_norm(batch: TokenBatch) -> Tensor:
    """1/(N L_max): Dr. GRPO (2503.20783), no bias towards short or long responses."""
    step = batch.whole
    max_length = step.max_length or batch.step_tensors.mask.shape[1]
    return _mask(batch) / (step.n_responses * max_length)


def prompt_mean(batch: TokenBatch) -> Tensor:
    """1/(P Σ_{j in group} |o_j|): mean over prompts of the mean over the tokens of all responses to a prompt.

    DAPO's equation for one prompt (2503.14476 eq. 8), whose expectation over prompts is read as this mean or as
    `token_mean`. P counts prompts with a token in the loss.
    """
    totals = batch.group_totals
    assert totals.responses is not None and totals.n_groups is not None and batch.groups is not None
    lengths = totals.responses.sum_by_group(totals.responses.lengths, batch.groups)
    return _mask(batch) / (lengths.clamp(min=1).unsqueeze(1) * totals.n_groups)


def _mask(batch: TokenBatch) -> Tensor:
    """The mask in the precision of the log-probabilities."""
    return batch.mask.to(batch.log_probs.dtype)
