"""Group-relative advantages: rewards [prompts, group] → advantages [prompts, group]."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6


def grpo(rewards: Tensor) -> Tensor:
    """(R_i − mean) / (std + 1e-6), sample (n−1) standard deviation; exactly 0 in a group of equal rewards."""
    centred = dr_grpo(rewards)
    if rewards.shape[1] < 2:
        return centred
    return centred / (rewards.std(1, keepdim=True) + EPSILON)


def dr_grpo(rewards: Tensor) -> Tensor:
    """R_i − mean_j R_j (2503.20783); exactly 0 in a group of equal rewards."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return torch.where(equal, 0.0, rewards - rewards.mean(1, keepdim=True))


def rloo(rewards: Tensor) -> Tensor:
    """R_i − mean_{j≠i} R_j: leave-one-out (2402.14740); 0 in a group of one."""
    size = rewards.shape[1]
    return dr_grpo(rewards) * (size / (size - 1) if size > 1 else 0.0)
