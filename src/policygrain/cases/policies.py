"""A tabular policy over responses of binary tokens, its task, and the closed form of its expected reward.

Two tokens decide, x1 and then x2; all others are irrelevant. The reward is 1 with probability x2 where x1 = 1, and with
probability SAFE where x1 = 0, whatever x2 is. So the value of x1 = 1 depends on how x2 is chosen after it.

Logits are [seeds, 3 + irrelevant tokens]: of x1, of x2 after x1 = 1, of x2 after x1 = 0, and of each irrelevant token.
Responses are [seeds, responses, tokens] of 0 and 1, log-probabilities have the same shape. All are float64.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SAFE = 0.3
X1, X2, X2_AFTER_0 = range(3)  # places of the decision's logits
DECISION = 3  # how many they are; the others are of irrelevant tokens


def logit(p: float) -> float:
    """The logit of a probability."""
    return math.log(p / (1 - p))


def start(x1: float, x2: float, irrelevant: int) -> Tensor:
    """Logits of one policy with these probabilities of x1 = 1 and of x2 = 1 after it; the others are fair. [1, …]."""
    decision = [logit(x1), logit(x2), 0.0]
    return torch.tensor([decision + [0.0] * irrelevant], dtype=torch.float64)


def log_probs(logits: Tensor, tokens: Tensor, first: int) -> Tensor:
    """Log-probability of each token; x1 and x2 are at ``first`` and ``first`` + 1."""
    x1 = tokens[..., first]
    decision, irrelevant = logits[:, None, :DECISION], logits[:, None, DECISION:].expand(-1, tokens.shape[1], -1)
    second = torch.where(x1 == 1, decision[..., X2], decision[..., X2_AFTER_0])
    pair = torch.stack([decision[..., X1].expand_as(second), second], dim=-1)
    by_place = torch.cat([irrelevant[..., :first], pair, irrelevant[..., first:]], dim=-1)
    return F.logsigmoid(torch.where(tokens == 1, by_place, -by_place))


def sample(logits: Tensor, uniform: Tensor, first: int) -> Tensor:
    """Responses from uniform random numbers [seeds, responses, tokens]."""
    p = logits.sigmoid()[:, None]
    tokens = torch.empty_like(uniform)
    tokens[..., :first] = uniform[..., :first].lt(p[..., DECISION : DECISION + first])
    tokens[..., first + 2 :] = uniform[..., first + 2 :].lt(p[..., DECISION + first :])
    tokens[..., first] = uniform[..., first].lt(p[..., X1])
    tokens[..., first + 1] = uniform[..., first + 1].lt(
        torch.where(tokens[..., first] == 1, p[..., X2], p[..., X2_AFTER_0])
    )
    return tokens


def every_response(length: int) -> Tensor:
    """All 2^length responses. [1, 2^length, length]."""
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * length).view(1, -1, length)


def reward_probability(tokens: Tensor, first: int) -> Tensor:
    """Probability of reward 1. [seeds, responses]."""
    return torch.where(tokens[..., first] == 1, tokens[..., first + 1], SAFE)


def expected_reward(logits: Tensor) -> Tensor:
    """J = p(x1) p(x2 | 1) + (1 − p(x1)) SAFE. [seeds]."""
    p1, p2 = logits[:, X1].sigmoid(), logits[:, X2].sigmoid()
    return p1 * p2 + (1 - p1) * SAFE


def exact_gradient(logits: Tensor) -> Tensor:
    """∇J by the logits, in closed form. [seeds, logits]."""
    p1, p2 = logits[:, X1].sigmoid(), logits[:, X2].sigmoid()
    gradient = torch.zeros_like(logits)
    gradient[:, X1] = p1 * (1 - p1) * (p2 - SAFE)
    gradient[:, X2] = p1 * p2 * (1 - p2)
    return gradient
