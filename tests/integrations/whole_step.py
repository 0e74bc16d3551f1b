"""A step of 4 or 16 responses of different lengths, and what a method computes of all of it."""

from typing import Any

import torch
from torch import Tensor

from policygrain import Method, TokenBatch, method

FOUR = [7, 3, 9, 5]
SIXTEEN = [12, 5, 9, 1, 7, 3, 12, 8, 2, 11, 4, 6, 10, 1, 9, 5]


def loss_and_gradient(objective: Method | str, fields: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Loss and its gradient by the log-probabilities, of a preset or a method."""
    chosen = method(objective) if isinstance(objective, str) else objective
    log_probs = fields["log_probs"].clone().requires_grad_()
    loss = chosen.loss(TokenBatch(**fields | {"log_probs": log_probs})).loss
    return loss.detach(), torch.autograd.grad(loss, log_probs)[0]
