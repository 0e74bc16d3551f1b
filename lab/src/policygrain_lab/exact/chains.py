"""Random policies over binary tokens, each of which depends on the one before it, and random rewards.

The response is divided into groups of consecutive tokens, and the reward is the mean over groups of a number that each
combination of the group's tokens has. Groups of one token are independent decisions; a group as long as the response is
one decision that depends on all of its tokens.

Logits are [policies, tokens, 2]: of each token after a 0 and after a 1; the first token follows a 0. Rewards are
[policies, groups, 2^tokens of a group]. Responses are [policies, responses, tokens] of 0 and 1, log-probabilities have
the same shape. All are float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def problems(count: int, length: int, group: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits with a standard normal distribution, and rewards uniform between 0 and 1."""
    logits = torch.randn((count, length, 2), generator=generator, dtype=torch.float64)
    return logits, torch.rand((count, length // group, 2**group), generator=generator, dtype=torch.float64)


def log_probs(logits: Tensor, tokens: Tensor, first: int = 0) -> Tensor:
    """Log-probability of each token after the token ``first``."""
    before = F.pad(tokens[..., :-1], (1, 0), value=first)
    logit = torch.where(before == 1, logits[:, None, :, 1], logits[:, None, :, 0])
    return F.logsigmoid(torch.where(tokens == 1, logit, -logit))


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Responses from uniform random numbers [policies, responses, tokens]."""
    p = logits.sigmoid()[:, None]
    tokens = [torch.zeros_like(uniform[..., 0])]
    for t in range(uniform.shape[-1]):
        chance = torch.where(tokens[-1] == 1, p[..., t, 1], p[..., t, 0])
        tokens.append(uniform[..., t].lt(chance).to(uniform.dtype))
    return torch.stack(tokens[1:], -1)


def every_response(length: int) -> Tensor:
    """All 2^length responses. [1, 2^length, length]."""
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * length).view(1, -1, length)


def reward(tokens: Tensor, rewards: Tensor) -> Tensor:
    """The reward of each response. [policies, responses]."""
    _, groups, combinations = rewards.shape
    words = tokens.unflatten(-1, (groups, -1))
    places = 2.0 ** torch.arange(words.shape[-1] - 1, -1, -1, dtype=torch.float64)
    index = (words @ places).long() + combinations * torch.arange(groups)
    flat = index.expand(len(rewards), -1, -1).flatten(1)
    return rewards.flatten(1).gather(1, flat).view(len(rewards), -1, groups).mean(-1)


def expected_reward(logits: Tensor, rewards: Tensor) -> Tensor:
    """J, computed group by group: the next group depends only on the last token of a group. [policies]."""
    _, groups, combinations = rewards.shape
    words = every_response(combinations.bit_length() - 1)
    state = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(logits), -1)
    total = torch.zeros_like(rewards[:, 0, 0])
    for part, numbers in zip(logits.chunk(groups, 1), rewards.unbind(1), strict=True):
        after = torch.stack([log_probs(part, words, first).sum(-1).exp() for first in (0, 1)], 1)
        joint = (state[..., None] * after).sum(1)
        total = total + (joint * numbers).sum(-1)
        state = joint.unflatten(1, (-1, 2)).sum(1)  # the last token is the lowest bit
    return total / groups


def exact_gradient(logits: Tensor, rewards: Tensor) -> Tensor:
    """∇J. [policies, tokens, 2]."""
    logits = logits.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(expected_reward(logits, rewards).sum(), logits)
    return gradient


def scores(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Derivative of each token's log π by its own logit; by other logits it is 0. [policies, responses, tokens]."""
    return (2 * tokens - 1) * (1 - log_probs.exp())


def by_logit(terms: Tensor, tokens: Tensor) -> Tensor:
    """Sums over responses of a number for each token, by its logit. [policies, tokens, 2]."""
    after_1 = F.pad(tokens[..., :-1], (1, 0)) * terms
    return torch.stack([(terms - after_1).sum(1), after_1.sum(1)], -1)
