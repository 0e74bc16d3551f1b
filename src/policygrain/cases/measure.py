"""Measurements of an estimator in a case: its expected update, updates from single batches, and training.

All losses are those of training (`Method.loss`). Many policies are updated at once: their responses are the rows of one
`TokenBatch`, and since no ratio, clip or mean used here joins different responses, the gradient by each policy's logits
is that policy's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..analysis.statistics import over_seeds
from ..objective import Method
from ..objective.batch import TokenBatch
from ..results.measurements import Measured
from . import policies
from .definitions import BATCH, STEP, UPDATES, Case

DIGITS = 6  # of recorded numbers
LARGEST_LOGIT = 12.0
DRAWS = 64  # of the random parts of a case, for expected updates
BATCHES = 400  # for the cosine of single batches


def update(
    method: Method, logits: Tensor, tokens: Tensor, old_log_probs: Tensor, advantages: Tensor, first: int
) -> Tensor:
    """The estimate of ∇J for each policy: −∇ loss, per response instead of per token. [seeds, logits]."""
    logits = logits.detach().requires_grad_()
    now = policies.log_probs(logits, tokens, first)
    (gradient,) = torch.autograd.grad(now, logits, token_weights(method, now, old_log_probs, advantages))
    return gradient / tokens.shape[1]


def token_weights(method: Method, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
    """The factor c_t Â of each token's ∇log π in the estimate of ∇J by its response. [seeds, responses, tokens]."""
    now = log_probs.detach().requires_grad_()
    batch = TokenBatch(
        log_probs=now.flatten(0, 1),
        old_log_probs=old_log_probs.flatten(0, 1),
        advantages=advantages.flatten(),
        mask=torch.ones_like(now.flatten(0, 1), dtype=torch.bool),
    )
    (gradient,) = torch.autograd.grad(method.loss(batch).loss, now)
    return -gradient * now.numel()  # the loss is a mean over all tokens


def expected_update(method: Method, case: Case) -> Tensor:
    """The mean over all batches, by enumeration of all responses and rewards; [logits].

    Where the case is random, the mean is over ``DRAWS`` draws. The baseline of the advantage is the behaviour policy's
    expected reward, as in an endless group.
    """
    generator = torch.Generator().manual_seed(0)
    draws = DRAWS if case.is_random else 1
    present = _present(case).expand(draws, -1)
    behaviour = drifted(_behaviour(case).expand(draws, -1), case, generator)
    responses = policies.every_response(case.tokens)
    tokens = responses.repeat(draws, 2, 1)  # with reward 1 and with reward 0
    old = policies.log_probs(behaviour, tokens, case.first)
    wins = policies.reward_probability(tokens, case.first)
    half = responses.shape[1]
    reward = (torch.arange(2 * half) < half).to(old.dtype)
    probability = old.sum(-1).exp() * torch.where(reward == 1, wins, 1 - wins)
    baseline = (probability * reward).sum(1, keepdim=True)
    # Surrogates are homogeneous in the advantage, so a response's probability can be a factor of its advantage. The
    # loss is a mean over rows, so the probability is multiplied by their number.
    advantages = (reward - baseline) * probability * tokens.shape[1]
    return update(method, present, tokens, mismatched(old, case, generator), advantages, case.first).mean(0)


def batch_cosines(method: Method, case: Case) -> Tensor:
    """Cosine of the update from one batch of ``BATCH`` responses with the exact gradient. [batches].

    0 for a batch without a gradient: all rewards equal.
    """
    generator = torch.Generator().manual_seed(1)
    present = _present(case).expand(BATCHES, -1)
    behaviour = drifted(_behaviour(case).expand(BATCHES, -1), case, generator)
    updates = batch_update(method, case, present, behaviour, generator)
    return torch.cosine_similarity(updates, policies.exact_gradient(present), dim=-1)


def train(method: Method, case: Case, seeds: int) -> Tensor:
    """Expected reward after 0, 1, … ``UPDATES`` updates, for all seeds at once. [UPDATES + 1, seeds].

    The behaviour policy is the present one of the last multiple of ``updates_per_batch``. Random numbers depend on the
    seed and the update only, so estimators can be compared in pairs.
    """
    generator = torch.Generator().manual_seed(2)
    logits = _behaviour(case).expand(seeds, -1)
    behaviour, rewards = logits, [policies.expected_reward(logits)]
    for step in range(UPDATES):
        if step % case.updates_per_batch == 0:
            behaviour = logits
        sampling = drifted(behaviour, case, generator)
        direction = batch_update(method, case, logits, sampling, generator)
        length = direction.norm(dim=-1, keepdim=True)
        # A batch of equal rewards has no direction.
        logits = logits + STEP * torch.where(length > 0, direction / length.clamp(min=1e-300), 0.0)
        logits = logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
        rewards.append(policies.expected_reward(logits))
    return torch.stack(rewards)


def batch_update(method: Method, case: Case, present: Tensor, behaviour: Tensor, generator: torch.Generator) -> Tensor:
    """Sample ``BATCH`` responses for each policy and estimate its gradient. [seeds, logits]."""
    shape = len(present), BATCH, case.tokens
    tokens = policies.sample(behaviour, torch.rand(shape, generator=generator, dtype=torch.float64), case.first)
    wins = policies.reward_probability(tokens, case.first)
    rewards = torch.rand(shape[:2], generator=generator, dtype=torch.float64).lt(wins).to(torch.float64)
    old = mismatched(policies.log_probs(behaviour, tokens, case.first), case, generator)
    return update(method, present, tokens, old, method.advantages(rewards), case.first)


def drifted(logits: Tensor, case: Case, generator: torch.Generator) -> Tensor:
    """The policy with normal noise of sd ``drift`` on the logits of irrelevant tokens."""
    if not case.drift:
        return logits
    noise = torch.randn(logits.shape, generator=generator, dtype=logits.dtype) * case.drift
    noise[:, : policies.DECISION] = 0
    return logits + noise


def mismatched(log_probs: Tensor, case: Case, generator: torch.Generator) -> Tensor:
    """The log-probabilities as an engine records them: with normal noise of sd ``mismatch``."""
    if not case.mismatch:
        return log_probs
    return log_probs + case.mismatch * torch.randn(log_probs.shape, generator=generator, dtype=log_probs.dtype)


def exact_gradient(case: Case) -> Tensor:
    """∇J at the case's present policy. [logits]."""
    return policies.exact_gradient(_present(case))[0]


def _present(case: Case) -> Tensor:
    return policies.start(case.p_x1, case.p_x2, case.irrelevant)


def _behaviour(case: Case) -> Tensor:
    return policies.start(case.p_x1, case.old_p_x2, case.irrelevant)


def interval(values: Tensor) -> Measured:
    """The mean over seeds with its interval, rounded; adding 0 turns −0 into 0."""
    mean, low, high = (round(value, DIGITS) + 0.0 for value in over_seeds(values.numpy()))
    return mean, low, high
